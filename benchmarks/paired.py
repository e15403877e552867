"""Whether two executors that did the same work differ by more than chance."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

RESAMPLES = 10_000


def ratio_interval(
    base: Sequence[float], other: Sequence[float], tokens: Sequence[int], seed: int = 0
) -> tuple[float, float, float]:
    """(ratio, low, high): the perplexity of `other` over that of `base`, and its 95 % interval.

    base, other: log-likelihoods of the same windows, summed over their `tokens`

    The interval is a bootstrap over windows (Efron 1979), which are resampled in pairs, so that
    what makes a window hard for both cancels. With one window there is no interval: both ends
    are the ratio.
    """
    gains, counts = np.subtract(base, other), np.asarray(tokens, np.float64)
    random = np.random.default_rng(seed)
    ratios = np.empty(RESAMPLES)
    for index in range(RESAMPLES):
        drawn = random.integers(len(gains), size=len(gains))
        ratios[index] = gains[drawn].sum() / counts[drawn].sum()
    low, high = np.quantile(ratios, [0.025, 0.975])
    return math.exp(gains.sum() / counts.sum()), math.exp(low), math.exp(high)


def mcnemar(base: Sequence[bool], other: Sequence[bool]) -> tuple[int, int, float]:
    """(lost, gained, p): items that only `base` has right, that only `other` has, and the
    two-sided probability of a split at least as uneven if neither were better (exact binomial
    test on the discordant pairs; McNemar 1947)."""
    lost = sum(one and not two for one, two in zip(base, other, strict=True))
    gained = sum(two and not one for one, two in zip(base, other, strict=True))
    discordant = lost + gained
    tail = sum(math.comb(discordant, k) for k in range(min(lost, gained) + 1))
    return lost, gained, min(1.0, 2 * tail / 2**discordant)


def difference_interval(lost: int, gained: int, items: int) -> tuple[float, float, float]:
    """(difference, low, high) of two accuracies on the same items, with the paired 95 % interval
    of the normal approximation."""
    difference = (gained - lost) / items
    error = math.sqrt(gained + lost - (gained - lost) ** 2 / items) / items
    return difference, difference - 1.96 * error, difference + 1.96 * error
