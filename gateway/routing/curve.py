"""How good a way of choosing between two models is: quality against the share of strong calls.

At a share of x, the prompts with the highest scores go to the stronger model. Of the gap between
the two models' mean qualities so much is recovered: 0 with no strong call, 1 with nothing else, and
x by choosing at random. Intervals are percentiles of 1,000 bootstrap samples of the prompts; what
is compared is compared on the same samples.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gateway.routing.outcomes import Numbers, Outcomes

SAMPLES = 1000
AT_ONCE = 50
"""Samples, which are an array of prompts x samples."""

SEED = 1
LEVEL = (2.5, 97.5)


def lengths(outcomes: Outcomes) -> Numbers:
    """The simplest router: longer prompts are harder."""
    return np.array([float(len(prompt)) for prompt in outcomes.prompts])


def recovered(scores: Numbers, outcomes: Outcomes, share: float) -> float:
    """Of the gap, when so large a share goes to the stronger model. Raises `ZeroDivisionError`
    where there is no gap."""
    gains = outcomes.gains[np.argsort(-scores, kind="stable")]
    return float(gains[: round(share * len(gains))].sum()) / float(gains.sum())


def cost(scores: Numbers, outcomes: Outcomes, share: float) -> float | None:
    """Mean cost of a prompt at that share; None where costs are not known."""
    if outcomes.weak_cost is None or outcomes.strong_cost is None:
        return None
    order = np.argsort(-scores, kind="stable")
    strong = order[: round(share * len(order))]
    total = outcomes.weak_cost.sum() + (outcomes.strong_cost - outcomes.weak_cost)[strong].sum()
    return float(total) / len(order)


class Bootstrap:
    """The same samples of the prompts for every way of choosing."""

    def __init__(self, outcomes: Outcomes, samples: int = SAMPLES) -> None:
        self._outcomes = outcomes
        self._samples = samples

    def recovered(self, scores: Numbers, share: float) -> Numbers:
        """Of the gap, in each sample; not a number where a sample has no gap."""
        order = np.argsort(-scores, kind="stable")
        gains = self._outcomes.gains[order]
        random = np.random.default_rng(SEED)
        found = []
        for start in range(0, self._samples, AT_ONCE):
            counts = _counts(random, len(order), min(AT_ONCE, self._samples - start))[:, order]
            found.append(_recovered(counts, gains, share))
        return np.concatenate(found)


def interval(samples: Numbers) -> tuple[float, float]:
    low, high = np.nanpercentile(samples, LEVEL)
    return float(low), float(high)


def _counts(random: np.random.Generator, prompts: int, samples: int) -> NDArray[np.int64]:
    """How often each prompt is in each sample, [samples, prompts]."""
    drawn = random.integers(0, prompts, (samples, prompts))
    return np.stack([np.bincount(row, minlength=prompts) for row in drawn])


def _recovered(counts: NDArray[np.int64], gains: Numbers, share: float) -> Numbers:
    """gains: in the order of the scores. The prompt at the border counts in part."""
    most = share * counts.shape[1]
    before = counts.cumsum(axis=1) - counts
    taken = np.clip(most - before, 0, counts)
    with np.errstate(invalid="ignore", divide="ignore"):
        whole: Numbers = (taken @ gains) / (counts @ gains)
    return np.where(np.isfinite(whole), whole, np.nan)
