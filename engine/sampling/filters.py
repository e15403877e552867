"""Which tokens survive top-k, top-p and min-p.

All three work on `scaled`, float32[N]: the logits over the temperature, the largest being 0.
They return positions in it, ascending, or None where everything survives. The order of tokens
is by `scaled`, descending, then by id, ascending.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.protocol.sampling import Sampling
from engine.runner.base import Float32

Positions = NDArray[np.intp]

_BINS_PER_NAT = 32
_LAST_BIN = 1023
"""Bins reach 32 nats below the best token; what lies lower shares the last one."""


def survivors(scaled: Float32, sampling: Sampling) -> Positions | None:
    """The positions left by top-k, then top-p over what is left, then min-p. None: all."""
    kept: Positions | None = None
    if 0 < sampling.top_k < len(scaled):
        kept = top_k(scaled, sampling.top_k)
    if sampling.top_p < 1.0:
        kept = _among(scaled, kept, top_p(_at(scaled, kept), sampling.top_p))
    if sampling.min_p > 0.0:
        kept = _among(scaled, kept, min_p(_at(scaled, kept), sampling.min_p))
    return kept


def top_k(scaled: Float32, k: int) -> Positions:
    """The first k, exactly k: of those that tie for the last places, the lowest ids."""
    least = np.partition(scaled, len(scaled) - k)[len(scaled) - k]
    above = np.flatnonzero(scaled > least)
    level = np.flatnonzero(scaled == least)[: k - len(above)]
    return np.sort(np.concatenate([above, level]))


def top_p(scaled: Float32, p: float) -> Positions:
    """The shortest run of first tokens whose mass reaches p of the whole; at least one.

    Holtzman et al. 2020. Masses are exp(scaled) in float64. They are summed into bins by
    value, and only the bin in which p is reached is sorted: linear in N, where a sort of
    49,152 takes ten times as long.
    """
    mass = np.exp(scaled.astype(np.float64))
    reach = np.float32(-_LAST_BIN / _BINS_PER_NAT)
    bins = (np.maximum(scaled, reach) * np.float32(-_BINS_PER_NAT)).astype(np.intp)
    mass_down_to = np.cumsum(np.bincount(bins, weights=mass, minlength=_LAST_BIN + 1))
    target = p * mass_down_to[-1]
    edge = int(np.searchsorted(mass_down_to, target))
    level = np.flatnonzero(bins == edge)
    level = level[np.argsort(-scaled[level], kind="stable")]
    before = mass_down_to[edge - 1] if edge else 0.0
    needed = int(np.searchsorted(before + np.cumsum(mass[level]), target)) + 1
    return np.sort(np.concatenate([np.flatnonzero(bins < edge), level[:needed]]))


def min_p(scaled: Float32, p: float) -> Positions:
    """Those at least p times as likely as the best (Nguyen et al. 2024)."""
    return np.flatnonzero(np.exp(scaled.astype(np.float64)) >= p)


def _at(scaled: Float32, kept: Positions | None) -> Float32:
    return scaled if kept is None else scaled[kept]


def _among(scaled: Float32, kept: Positions | None, inner: Positions) -> Positions:
    return inner if kept is None else kept[inner]
