"""Sequences driven through an executor by hand: the smallest thing that makes batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.protocol.sampling import Sampling
from engine.runner.base import BLOCK_TOKENS, Batch, Executor, SampleRow

GREEDY = Sampling(temperature=0.0)


@dataclass
class Lane:
    """One sequence: its tokens so far, its blocks, and how many tokens are in the KV memory."""

    tokens: list[int]
    blocks: list[int]
    computed: int = 0
    sampling: Sampling = GREEDY
    seed: int = 0
    prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tokens)

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_tokens :]


def lanes_of(prompts: Sequence[Sequence[int]], length: int, *, shuffle: int = 0) -> list[Lane]:
    """Lanes with room for `length` tokens each, their blocks strewn over the memory."""
    each = -(-length // BLOCK_TOKENS)
    order = np.random.default_rng(shuffle).permutation(each * len(prompts)).tolist()
    return [
        Lane(list(prompt), order[index * each : (index + 1) * each])
        for index, prompt in enumerate(prompts)
    ]


def blocks_for(prompts: Sequence[Sequence[int]], length: int) -> int:
    return -(-length // BLOCK_TOKENS) * len(prompts)


def batch_of(parts: Iterable[tuple[Lane, int]], *, sample_all: bool = False) -> Batch:
    """The next `count` tokens of each lane, which are then computed.

    Sampled is a lane's last token, or with `sample_all` every one.
    """
    parts = list(parts)
    tokens: list[int] = []
    positions: list[int] = []
    query_start = [0]
    samples: list[SampleRow] = []
    for lane, count in parts:
        stop = lane.computed + count
        for position in range(lane.computed, stop):
            if sample_all or position == len(lane.tokens) - 1:
                samples.append(_sample_row(lane, len(tokens), position))
            tokens.append(lane.tokens[position])
            positions.append(position)
        query_start.append(len(tokens))
        lane.computed = stop
    slots = [
        lane.blocks[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS
        for (lane, count) in parts
        for position in range(lane.computed - count, lane.computed)
    ]
    table = np.full((len(parts), max(len(lane.blocks) for lane, _ in parts)), -1, np.int32)
    for row, (lane, _) in enumerate(parts):
        used = -(-lane.computed // BLOCK_TOKENS)
        table[row, :used] = lane.blocks[:used]
    return Batch(
        tokens=np.array(tokens, np.int32),
        positions=np.array(positions, np.int32),
        slots=np.array(slots, np.int32),
        query_start=np.array(query_start, np.int32),
        context_len=np.array([lane.computed for lane, _ in parts], np.int32),
        block_table=table,
        samples=tuple(samples),
    )


def _sample_row(lane: Lane, row: int, position: int) -> SampleRow:
    return SampleRow(
        row=row,
        sampling=lane.sampling,
        seed=lane.seed,
        position=position + 1,
        prompt=np.array(lane.tokens[: lane.prompt_tokens], np.int32),
        output=np.array(lane.output, np.int32),
        end_ids=frozenset(),
    )


def chunks(lanes: Sequence[Lane], budget_tokens: int) -> Iterator[list[tuple[Lane, int]]]:
    """Steps that bring every lane's known tokens into KV: decodes first, then what fits."""
    while waiting := [lane for lane in lanes if lane.computed < len(lane.tokens)]:
        left = budget_tokens
        parts = []
        for lane in sorted(waiting, key=lambda lane: len(lane.tokens) - lane.computed):
            count = min(len(lane.tokens) - lane.computed, left)
            if count:
                parts.append((lane, count))
                left -= count
        yield parts


def generate(
    executor: Executor, lanes: Sequence[Lane], new_tokens: int, *, budget_tokens: int = 512
) -> list[list[int]]:
    """Run all lanes together until each has `new_tokens`. Returns what they produced."""
    while unfinished := [lane for lane in lanes if len(lane.output) < new_tokens]:
        parts = next(chunks(unfinished, budget_tokens))
        ending = [lane for lane, count in parts if lane.computed + count == len(lane.tokens)]
        sampled = executor.run(batch_of(parts))
        for lane, result in zip(ending, sampled, strict=True):
            lane.tokens.append(result.token)
    return [lane.output for lane in lanes]
