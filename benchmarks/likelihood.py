"""Log-likelihoods of given tokens, straight from an executor's logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.protocol.sampling import Sampling
from engine.runner.base import BLOCK_TOKENS, Batch, ModelShape, SampleRow

Float64 = NDArray[np.float64]

_GREEDY = Sampling(temperature=0.0)
_NOTHING = np.empty(0, np.int32)


class GivesLogits(Protocol):
    """What both executors have beside `Executor.run`."""

    shape: ModelShape

    def allocate(self, num_blocks: int) -> None: ...

    def logits(self, batch: Batch) -> Any:
        """float32[len(batch.samples), vocabulary]"""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Span:
    """Some rows of one sequence: those of `tokens[start:end]`; what comes before is in KV.

    blocks: of the sequence, from its first token on
    scored: the first token whose likelihood is wanted, given all before it; the last one is the
            token after `end`, where the sequence has one. No token before `start + 1` can be.
    """

    tokens: Sequence[int]
    start: int
    end: int
    blocks: Sequence[int]
    scored: int

    @property
    def rows(self) -> range:
        """Positions whose logits are wanted: each tells of the token after it."""
        return range(max(self.start, self.scored - 1), min(self.end, len(self.tokens) - 1))


def batch_of(spans: Sequence[Span]) -> Batch:
    """One step that computes all of `spans`. A span with nothing to score is only kept in KV."""
    lengths = [span.end - span.start for span in spans]
    query_start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    table = np.full((len(spans), max(len(span.blocks) for span in spans)), -1, np.int32)
    for line, span in zip(table, spans, strict=True):
        line[: len(span.blocks)] = span.blocks
    positions = np.concatenate([np.arange(span.start, span.end) for span in spans])
    owner = np.repeat(np.arange(len(spans)), lengths)
    slots = table[owner, positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
    sampled = [
        int(first) + position - span.start
        for first, span in zip(query_start, spans, strict=False)
        for position in span.rows
    ]
    return Batch(
        tokens=np.concatenate([span.tokens[span.start : span.end] for span in spans]).astype(
            np.int32
        ),
        positions=positions.astype(np.int32),
        slots=slots.astype(np.int32),
        query_start=query_start,
        context_len=np.array([span.end for span in spans], np.int32),
        block_table=table,
        samples=tuple(map(_sample_row, sampled)),
    )


def log_likelihoods(executor: GivesLogits, spans: Sequence[Span]) -> list[Float64]:
    """Natural logarithms for the scored tokens of each span, one step for all of them."""
    logits = np.asarray(executor.logits(batch_of(spans)), np.float32)
    targets = [span.tokens[position + 1] for span in spans for position in span.rows]
    values = logits[np.arange(len(targets)), targets] - _log_sums(logits)
    ends = np.cumsum([len(span.rows) for span in spans])
    return np.split(values, ends[:-1])


def _log_sums(logits: NDArray[np.float32]) -> Float64:
    """log(sum(exp(row))), float64[rows]; a row at a time stays in the cache."""
    sums = np.empty(len(logits))
    for index, row in enumerate(logits):
        most = row.max()
        sums[index] = float(most) + np.log(np.exp(row - most).sum(dtype=np.float64))
    return sums


def _sample_row(row: int) -> SampleRow:
    """A row whose logits are wanted; nothing is sampled from them."""
    return SampleRow(row, _GREEDY, 0, 0, _NOTHING, _NOTHING, frozenset())
