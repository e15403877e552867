"""Questions with given answers: the model's answer is the one that it finds likeliest.

Scored as EleutherAI's lm-evaluation-harness scores `arc_easy`, without examples: the prompt is
the question, a line break and `Answer:`, an answer follows after a space; `acc` takes the
likeliest answer, `acc_norm` the likeliest for each of its characters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from benchmarks.likelihood import GivesLogits, Span, log_likelihoods
from engine.runner.base import BLOCK_TOKENS
from engine.text.tokenizer import Tokenizer

STEP_ROWS = 512


@dataclass(frozen=True, slots=True)
class Item:
    """A question in tokens.

    sequences: the prompt with each of the answers
    scored:    the first token of the answer, in each of them
    lengths:   of the answers, in characters
    gold:      index of the right one
    """

    sequences: Sequence[Sequence[int]]
    scored: int
    lengths: Sequence[int]
    gold: int

    @property
    def shared(self) -> int:
        """Tokens in whole blocks that all sequences begin with, and that need no score."""
        alike = sum(1 for _ in takewhile(_is_one, zip(*self.sequences, strict=False)))
        return min(alike, self.scored - 1) // BLOCK_TOKENS * BLOCK_TOKENS

    @property
    def num_rows(self) -> int:
        """Rows of the larger of the item's two steps."""
        return max(self.shared, sum(len(one) - 1 - self.shared for one in self.sequences))

    @property
    def num_blocks(self) -> int:
        return sum(-(-len(one) // BLOCK_TOKENS) for one in self.sequences)

    def right(self, likelihoods: Sequence[float]) -> bool:
        return _best(likelihoods) == self.gold

    def right_by_character(self, likelihoods: Sequence[float]) -> bool:
        each = [value / length for value, length in zip(likelihoods, self.lengths, strict=True)]
        return _best(each) == self.gold


def read_items(path: Path, tokenizer: Tokenizer) -> list[Item]:
    """From lines of JSON with `query`, `choices` and `gold`, as llm-foundry publishes them."""
    items = []
    for line in path.read_text("utf-8").splitlines():
        told = json.loads(line)
        prompt = f"{told['query']}\nAnswer:"
        items.append(
            Item(
                [tokenizer.encode_prompt(f"{prompt} {choice}") for choice in told["choices"]],
                len(tokenizer.encode_prompt(prompt)),
                [len(choice) for choice in told["choices"]],
                told["gold"],
            )
        )
    return items


def groups(items: Sequence[Item], rows: int = STEP_ROWS) -> Iterator[Sequence[Item]]:
    """In order, as many at once as fit into a step of `rows`, or one that does not."""
    start = total = 0
    for index, item in enumerate(items):
        if index > start and total + item.num_rows > rows:
            yield items[start:index]
            start, total = index, 0
        total += item.num_rows
    if start < len(items):
        yield items[start:]


def score_items(executor: GivesLogits, items: Sequence[Item]) -> list[list[float]]:
    """The log-likelihood of every answer of each item, in two steps.

    The first step computes the blocks that an item's sequences share, the second what is left.
    """
    shared, own, free = [], [], 0
    for item in items:
        common = list(range(free, free + item.shared // BLOCK_TOKENS))
        free += len(common)
        if common:
            shared.append(Span(item.sequences[0], 0, item.shared, common, item.scored))
        for tokens in item.sequences:
            count = -(-len(tokens) // BLOCK_TOKENS) - len(common)
            blocks = [*common, *range(free, free + count)]
            free += count
            own.append(Span(tokens, item.shared, len(tokens) - 1, blocks, item.scored))
    if shared:
        log_likelihoods(executor, shared)
    values = iter([float(one.sum()) for one in log_likelihoods(executor, own)])
    return [[next(values) for _ in item.sequences] for item in items]


def _is_one(tokens: tuple[int, ...]) -> bool:
    return len(set(tokens)) == 1


def _best(values: Sequence[float]) -> int:
    """The first of the largest."""
    return max(range(len(values)), key=values.__getitem__)
