"""The next token as a pure function of a row of logits and its `SampleRow`.

    masks -> logit_bias -> penalties -> temperature -> top-k -> top-p -> min-p -> Gumbel-max

A row's outcome depends on that row alone: no state, no batch, no order of calls. This is the
meaning that native and GPU samplers reproduce; the float steps are

    adjusted  float32, see `penalties.adjust`
    greedy    the first largest of `adjusted`, and nothing below happens
    scaled    (adjusted - max(adjusted)) / float32(temperature), in float32; 0 at the best
    kept      see `filters`
    token     the first largest of float64(scaled) + gumbel, over kept, see `noise`

Gumbel-max: adding independent Gumbel noise and taking the largest draws from the softmax
(Gumbel 1954; Maddison, Tarlow, Minka 2014). A tie is won by the lowest id, everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.runner.base import Float32, Sampled, SampleRow
from engine.sampling.filters import survivors
from engine.sampling.logprobs import log_probabilities
from engine.sampling.noise import exponential, noise_words
from engine.sampling.penalties import adjust

NO_TOKEN = -1
_ROUNDING = np.float32(1.0001)
"""Far above float32's error in the race's first pass, far below what would cost a second look."""


def sample(logits: Float32, rows: Sequence[SampleRow]) -> list[Sampled]:
    """One `Sampled` a row, in order. logits: float32[len(rows), V]; logits[i] is of rows[i].

    A NaN in the logits counts as -inf and +inf as the largest float32, so that a broken row
    ends in some token and not in an exception that would stop its neighbours.
    """
    return [_sample_row(_finite(logits[i]), row) for i, row in enumerate(rows)]


def _sample_row(logits: Float32, row: SampleRow) -> Sampled:
    token = _choose(adjust(logits, row), row)
    if token == NO_TOKEN or row.sampling.logprobs is None:
        return Sampled(token)
    return Sampled(token, *log_probabilities(logits, token, row.sampling.logprobs))


def _finite(logits: Float32) -> Float32:
    if np.isfinite(logits.max()):  # a NaN anywhere makes the maximum NaN
        return logits
    capped = np.minimum(logits, np.finfo(np.float32).max)
    return np.where(np.isnan(logits), np.float32(-np.inf), capped)


def _choose(adjusted: Float32, row: SampleRow) -> int:
    best = int(adjusted.argmax())
    if adjusted[best] == -np.inf:
        return NO_TOKEN
    sampling = row.sampling
    if sampling.greedy or sampling.top_k == 1:
        return best
    with np.errstate(over="ignore"):
        scaled = (adjusted - adjusted[best]) / np.float32(sampling.temperature)
    kept = survivors(scaled, sampling)
    if kept is not None and len(kept) == 1:
        return int(kept[0])
    words = noise_words(row.seed, row.position, len(adjusted))
    if kept is None:
        return _race(scaled, words)
    return int(kept[_race(scaled[kept], words[kept])])


def _race(scaled: Float32, words: NDArray[np.uint32]) -> int:
    """argmax of scaled + gumbel, with logarithms taken of the few that can win.

    scaled + gumbel is largest where E / exp(scaled) is least, E = -log(u) being exponential
    noise. E is never under 1 - u, so (1 - u) / exp(scaled), cheap in float32, never overstates
    that ratio; the winner's cannot exceed the true ratio of any other token.
    """
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        least = ((~words).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
        least /= np.exp(scaled)
        some = int(least.argmin())
        bound = np.float32(exponential(words[some : some + 1])[0]) / np.exp(scaled[some])
    able = np.flatnonzero(least <= bound * _ROUNDING)
    scores = scaled[able].astype(np.float64) - np.log(exponential(words[able]))
    return int(able[scores.argmax()])
