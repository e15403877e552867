"""From a scheduled step to the flat arrays that an executor runs."""

from __future__ import annotations

import numpy as np

from engine.runner.base import BLOCK_TOKENS, Batch, Int32, SampleRow
from engine.sequence import Sequence
from engine.step import Step


def build_batch(step: Step) -> tuple[Batch, list[Sequence]]:
    """The batch of a step, and the sequences that its `samples` belong to, in the same order.

    Sampled is a sequence's last token and, behind it, each guess: as many rows as will say what
    follows if the guesses before them are right.
    """
    sequences = list(step.segments)
    lengths = np.fromiter(step.segments.values(), np.int32, len(sequences))
    starts = np.array([sequence.num_computed for sequence in sequences], np.int32)
    query_start = np.zeros(len(sequences) + 1, np.int32)
    np.cumsum(lengths, out=query_start[1:])
    table = _block_table(sequences)
    owner = np.repeat(np.arange(len(sequences)), lengths)
    positions = np.arange(query_start[-1], dtype=np.int32) + (starts - query_start[:-1])[owner]
    slots = table[owner, positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
    ends = starts + lengths
    tokens = [
        sequence.tokens(start, end)
        for sequence, start, end in zip(sequences, starts.tolist(), ends.tolist(), strict=True)
    ]
    last_rows = (query_start[1:] - 1).tolist()
    sampled = [
        (sequence, last - (end - length), length)
        for sequence, last, end in zip(sequences, last_rows, ends.tolist(), strict=True)
        for length in range(sequence.num_tokens, end + 1)
    ]
    batch = Batch(
        tokens=np.concatenate(tokens),
        positions=positions,
        slots=slots,
        query_start=query_start,
        context_len=ends,
        block_table=table,
        samples=tuple(_sample_row(*one) for one in sampled),
    )
    return batch, [sequence for sequence, _, _ in sampled]


def _block_table(sequences: list[Sequence]) -> Int32:
    """int32[S, W], -1 beyond a sequence's blocks."""
    width = max(sequence.num_blocks for sequence in sequences)
    table = np.full((len(sequences), width), -1, np.int32)
    for row, sequence in zip(table, sequences, strict=True):
        row[: sequence.num_blocks] = sequence.table
    return table


def _sample_row(sequence: Sequence, row: int, length: int) -> SampleRow:
    """What follows the sequence's first `length` tokens, guesses included."""
    output, end_ids, mask = sequence.output_until(length), sequence.end_ids, None
    if sequence.grammar is not None:
        mask = sequence.grammar.mask(output)
        if sequence.grammar.must_end(mask):
            end_ids = frozenset()  # whatever min_tokens says
    return SampleRow(
        row=row,
        sampling=sequence.request.sampling,
        seed=sequence.seed,
        position=length,
        prompt=sequence.prompt,
        output=output,
        end_ids=end_ids,
        mask=mask,
    )
