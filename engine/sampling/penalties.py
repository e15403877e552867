"""What is done to a row of logits before it becomes a distribution: masks, bias, penalties."""

from __future__ import annotations

import numpy as np

from engine.protocol.sampling import Sampling
from engine.runner.base import Float32, Int32, SampleRow

_FLOAT32 = np.finfo(np.float32)


def adjust(logits: Float32, row: SampleRow) -> Float32:
    """Masks, then logit_bias, then penalties. float32[V] to float32[V], all in float32.

    The input is never written to, and comes back itself where the parameters are neutral.
    A masked token is -inf and stays so: neither bias nor penalties bring it back.
    """
    sampling = row.sampling
    ending = len(row.output) < sampling.min_tokens and bool(row.end_ids)
    if not (ending or row.mask is not None or _changes(sampling)):
        return logits
    adjusted = _allowed(logits, sampling.allowed_token_ids)  # a copy, float32[V]
    if row.mask is not None:
        bits = np.unpackbits(row.mask.view(np.uint8), count=len(adjusted), bitorder="little")
        adjusted[bits == 0] = -np.inf
    adjusted[sampling.bad_token_ids] = -np.inf
    if ending:
        adjusted[list(row.end_ids)] = -np.inf
    if sampling.logit_bias:
        ids = np.fromiter(sampling.logit_bias.keys(), np.int64)
        adjusted[ids] += np.fromiter(sampling.logit_bias.values(), np.float32)
    if sampling.repetition_penalty != 1.0:
        _penalise_repetition(adjusted, sampling.repetition_penalty, row.prompt, row.output)
    if sampling.presence_penalty or sampling.frequency_penalty:
        _penalise_output(adjusted, sampling, row.output)
    return adjusted


def _changes(sampling: Sampling) -> bool:
    return bool(
        sampling.allowed_token_ids is not None
        or sampling.bad_token_ids
        or sampling.logit_bias
        or sampling.repetition_penalty != 1.0
        or sampling.presence_penalty
        or sampling.frequency_penalty
    )


def _allowed(logits: Float32, ids: list[int] | None) -> Float32:
    if ids is None:
        return logits.copy()
    masked = np.full_like(logits, -np.inf)
    masked[ids] = logits[ids]
    return masked


def _penalise_repetition(adjusted: Float32, penalty: float, prompt: Int32, output: Int32) -> None:
    """Divide a positive logit, multiply a negative one (CTRL, Keskar et al. 2019), once a token.

    A penalty near 0 can pass float32's range; it then saturates, so that no infinity minus an
    infinity follows.
    """
    seen = np.zeros(len(adjusted), np.bool_)
    seen[prompt] = True
    seen[output] = True
    ids = np.flatnonzero(seen)
    values = adjusted[ids]
    factor = np.float32(max(penalty, float(_FLOAT32.tiny)))
    with np.errstate(over="ignore"):
        values = np.where(values > 0, values / factor, values * factor)
    adjusted[ids] = np.minimum(values, _FLOAT32.max)


def _penalise_output(adjusted: Float32, sampling: Sampling, output: Int32) -> None:
    """OpenAI's: frequency for every occurrence, presence once for a token that occurred."""
    ids, counts = np.unique(output, return_counts=True)
    adjusted[ids] -= counts.astype(np.float32) * np.float32(
        sampling.frequency_penalty
    ) + np.float32(sampling.presence_penalty)
