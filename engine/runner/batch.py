"""The check every executor makes of a `Batch` before it touches memory with its numbers."""

from __future__ import annotations

import numpy as np

from engine.runner.base import BLOCK_TOKENS, Batch, Int32, ModelShape


def check_batch(batch: Batch, shape: ModelShape, num_blocks: int) -> None:
    """Raise ValueError for a batch that contradicts itself, the model or the KV memory.

    It is a fault of whoever built the batch, never of a client. Block tables and context lengths
    are checked where attention is planned.
    """
    rows = len(batch.tokens)
    if not (batch.query_start[-1] == rows == len(batch.positions) == len(batch.slots)):
        raise ValueError(
            f"tokens, positions and slots must have {batch.query_start[-1]} rows, not "
            f"{rows}, {len(batch.positions)} and {len(batch.slots)}."
        )
    _check_range("tokens", batch.tokens, shape.vocab_size)
    _check_range("positions", batch.positions, shape.context_length)
    _check_range("slots", batch.slots, num_blocks * BLOCK_TOKENS)
    _check_range("samples", np.array([sample.row for sample in batch.samples], np.int32), rows)
    last = batch.query_start[1:][np.diff(batch.query_start) > 0] - 1
    context = batch.context_len[np.diff(batch.query_start) > 0]
    if (batch.positions[last] + 1 != context).any():
        raise ValueError("context_len must be one more than the segment's last position.")


def _check_range(name: str, values: Int32, limit: int) -> None:
    if len(values) and not (values.min() >= 0 and values.max() < limit):
        raise ValueError(
            f"{name} must be in 0 to {limit - 1}, not {values.min()} to {values.max()}."
        )
