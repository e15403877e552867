"""What a policy saves, from the two arms of its holdout, with intervals that may be read early.

An arm is a list of clusters, one a conversation: what it cost, and how many requests (or, with 1
each, conversations) it cost that for. The mean of an arm is the ratio of the two sums, and its
variance is the delete-one jackknife over conversations, of the logarithm where a ratio is asked
for. Tokens have heavy tails, so the variance is itself uncertain: Student's t has the degrees of
freedom that the kurtosis of the conversations leaves (Box 1953: Var(s^2) = s^4 (kurtosis - 1) / n
for large n), and Satterthwaite's when that is less.

**Read at any time.** The interval changes only at looks, which are due when the control arm has
FIRST_LOOK conversations and then twice as many as at the look before: a schedule that no outcome
can move. Look k may miss with probability `miss(k)`, and these add up to 5 %; what is shown is the
part that all looks so far have in common. So with a probability of at least 95 % no interval
that was ever shown misses, however often they are read and whatever is done about it (Bonferroni,
which needs no assumption on how the looks depend on one another).

Most of the 5 % is spent at the first look. An interval that is valid at all times is otherwise
too wide at each one (a mixture boundary, Waudby-Smith et al. 2021, arXiv:2103.06476, covers about
99 % at a given time); here it covers 96 % at the first look and near 95 % ever after, neither
more nor less than is claimed. The price is paid late: after 3,200 conversations in the
control arm it is about 1.7 times as wide as one that could only be read once, on that day.

The looks have a part in common unless the effect has changed with time. Where they have none,
the latest look stands alone and says so (`shifted`): its 95 % hold no more for the whole series.
`python -m benchmarks.holdout` measures all of this.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from statistics import NormalDist

import msgspec

FIRST_LOOK = 100
"""Conversations that each arm needs before anything is claimed."""

MISS = 0.05
"""Probability that any interval of one experiment and measure ever misses."""

_FIRST_MISS = 0.04
_LEAST_FREEDOM = 4.0
_ROUNDING = 16 * sys.float_info.epsilon

Clusters = Sequence[tuple[float, float]]
"""(what it cost, for how many requests) of each conversation."""


class Comparison(msgspec.Struct, frozen=True):
    """An effect and how precisely it is known at one look.

    effect:  treated against control: the logarithm of their ratio, or their difference
    error:   its standard error
    freedom: degrees of freedom of that error
    """

    effect: float
    error: float
    freedom: float


class Interval(msgspec.Struct, frozen=True):
    """Where an effect lies. shifted: it is not where earlier looks said: it has changed."""

    low: float
    high: float
    shifted: bool = False

    def within(self, earlier: Interval | None) -> Interval:
        """The part of this look's interval that is also in the one shown before."""
        if earlier is None:
            return self
        low, high = max(self.low, earlier.low), min(self.high, earlier.high)
        if low > high:
            return Interval(self.low, self.high, shifted=True)
        return Interval(low, high, earlier.shifted)


class _Arm(msgspec.Struct, frozen=True):
    mean: float
    variance: float
    freedom: float


def next_look(last: int | None) -> int:
    """Conversations in the control arm at which a look is due, after one that had `last`."""
    return FIRST_LOOK if last is None else 2 * last


def miss(look: int) -> float:
    """Probability that the interval of look 1, 2, ... misses by itself. Adds up to MISS."""
    return _FIRST_MISS if look == 1 else (MISS - _FIRST_MISS) * 0.5 ** (look - 1)


def ratio(control: Clusters, treated: Clusters) -> Comparison | None:
    """The logarithm of treated over control; None when a single conversation is all there is."""
    return _compare(_arm(control, math.log), _arm(treated, math.log))


def difference(control: Clusters, treated: Clusters) -> Comparison | None:
    """Treated less control, for shares: of answers that were cut, of requests that failed.

    What is rare may not have happened at all in a small arm, which does not make it impossible
    there: each arm gets one conversation more in which it always happened and one in which it never
    did (Agresti and Caffo 2000). None for an arm that is empty.
    """
    if not control or not treated:
        return None
    return _compare(_arm(_with_two(control), float), _arm(_with_two(treated), float))


def interval(comparison: Comparison, look: int, among: int = 1) -> Interval:
    """Of one look, by itself. among: measures that may miss no more often together than one."""
    width = _student(1 - miss(look) / (2 * among), comparison.freedom) * comparison.error
    return Interval(comparison.effect - width, comparison.effect + width)


def saving(effect: float) -> float:
    """The share that is saved, from the logarithm of treated over control."""
    return -math.expm1(effect)


def _with_two(clusters: Clusters) -> Clusters:
    size = math.fsum(each for _, each in clusters) / len(clusters)
    return [*clusters, (size, size), (0.0, size)]


def _compare(control: _Arm | None, treated: _Arm | None) -> Comparison | None:
    if control is None or treated is None:
        return None
    variance = control.variance + treated.variance
    if variance == 0:
        return None
    parts = ((arm.variance / variance) ** 2 / arm.freedom for arm in (control, treated))
    return Comparison(
        treated.mean - control.mean, math.sqrt(variance), max(1 / sum(parts), _LEAST_FREEDOM)
    )


def _arm(clusters: Clusters, scale: Callable[[float], float]) -> _Arm | None:
    """Mean on `scale`, with its variance as the jackknife over clusters gives it."""
    count = len(clusters)
    cost = math.fsum(each for each, _ in clusters)
    size = math.fsum(each for _, each in clusters)
    try:
        mean = scale(cost / size)
        without = [scale((cost - y) / (size - d)) for y, d in clusters]
    except (ZeroDivisionError, ValueError):
        # One cluster is the whole arm, or nothing was spent but by one.
        return None
    centre = math.fsum(without) / count
    # Clusters that are all alike still differ by rounding, which is no variance.
    rounding = _ROUNDING * max(1.0, abs(centre))
    deviations = [d for each in without if abs(d := each - centre) > rounding]
    squares = math.fsum(d**2 for d in deviations)
    fourths = math.fsum(d**4 for d in deviations)
    freedom = count - 1.0
    if fourths > 0:
        kurtosis = count * fourths / squares**2
        freedom = min(freedom, 2 * count / max(kurtosis - 1, 1.0))
    return _Arm(mean, squares * (count - 1) / count, freedom)


def _student(probability: float, freedom: float) -> float:
    """Student's quantile by the expansion in 1 / freedom (Abramowitz and Stegun 26.7.5).

    Within 0.5 % for `freedom` of 4 and more up to a probability of 0.98, and for 10 and more
    wherever looks go.
    """
    z = NormalDist().inv_cdf(probability)
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
