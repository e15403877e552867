"""Reported log-probabilities: always of the raw distribution, before any parameter."""

from __future__ import annotations

import math

import numpy as np

from engine.runner.base import Float32, Int32

FLOOR = -9999.0
"""JSON has no -inf: a token that the model rules out is reported with this."""


def log_probabilities(logits: Float32, token: int, k: int) -> tuple[float, Int32, Float32]:
    """(logprob of `token`, int32[k] most likely ids, float32[k] their logprobs).

    The log-softmax is taken in float64. Ids are ordered by logit, then by lowest id; values
    are never under FLOOR.
    """
    values = logits.astype(np.float64)
    best = float(values.max())
    log_total = best + math.log(float(np.exp(values - best).sum()))
    ids = _first(logits, min(k, len(logits)))
    top = np.maximum(values[ids] - log_total, FLOOR)
    return max(float(values[token]) - log_total, FLOOR), ids, top.astype(np.float32)


def _first(logits: Float32, k: int) -> Int32:
    if k == 0:
        return np.empty(0, np.int32)
    least = np.partition(logits, len(logits) - k)[len(logits) - k]
    ids = np.flatnonzero(logits >= least)
    order = np.argsort(-logits[ids], kind="stable")
    return ids[order[:k]].astype(np.int32)
