"""How often the holdout's intervals are right: simulated routes whose true saving is known.

    python -m benchmarks.holdout                  1,000 routes of each kind, about ten minutes
    python -m benchmarks.holdout --routes 100

A route is a stream of conversations. Each has a number of requests and a cost of its own
(lognormal), and each request's tokens are lognormal again around that: clustered and heavy-tailed.
The policy takes a known part off. Every route is read at every look, and each row says how often
the interval held the truth: read at the first look, at each fixed look, when an impatient reader
stopped (at the first interval without zero), and at all looks of a route together. For comparison,
the same for an interval that takes no account of being read often (`fixed`), and for one that
takes requests for independent (`requests`). Widths are of the interval of the logarithm.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from statistics import mean

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.savings import (
    Clusters,
    Comparison,
    Interval,
    interval,
    next_look,
    ratio,
)

FIXED_Z = 1.959964

Tokens = NDArray[np.float64]


class Kind(msgspec.Struct, frozen=True):
    """Standard deviations of logarithms, and what the policy leaves of each answer."""

    name: str
    conversation: float
    answer: float
    length: float
    left: float


KINDS = (
    Kind("light tails, saves 20 %", 0.4, 0.5, 0.5, 0.8),
    Kind("heavy tails, saves 20 %", 0.6, 0.8, 0.8, 0.8),
    Kind("heavy tails, saves nothing", 0.6, 0.8, 0.8, 1.0),
    Kind("heavier still, saves 20 %", 1.0, 1.0, 1.0, 0.8),
)
LOOKS = 6
TREATED = 4
"""Treated conversations for each in the control arm: a holdout of a fifth. With the usual twentieth
(`--treated 19`) the simulation takes four times as long."""


class Reading(msgspec.Struct, frozen=True):
    """One route, look by look: what was shown, and what the two other methods would have."""

    shown: list[Interval]
    fixed: list[Interval]
    requests: Interval


class Route:
    """Conversations of both arms, in the order of their arrival."""

    def __init__(self, random: np.random.Generator, kind: Kind, control: int, treated: int) -> None:
        self.control = _conversations(random, kind, control, 1.0)
        self.treated = _conversations(random, kind, control * treated, kind.left)
        self._ratio = treated

    def read(self, looks: int) -> Reading:
        shown: list[Interval] = []
        fixed: list[Interval] = []
        due = None
        for look in range(1, looks + 1):
            due = next_look(due)
            found = ratio(_sums(self.control[:due]), _sums(self.treated[: due * self._ratio]))
            if found is None:
                raise SystemExit("A simulated arm was spent by one conversation alone.")
            shown.append(interval(found, look).within(shown[-1] if shown else None))
            fixed.append(_fixed(found))
        return Reading(shown, fixed, self._as_requests())

    def _as_requests(self) -> Interval:
        """Every request a cluster of its own, at the last look."""
        arms = [np.concatenate(arm) for arm in (self.control, self.treated)]
        found = ratio(*([(float(tokens), 1.0) for tokens in arm] for arm in arms))
        if found is None:
            raise SystemExit("A simulated arm was spent by one request alone.")
        return _fixed(found)


def _conversations(
    random: np.random.Generator, kind: Kind, count: int, left: float
) -> list[Tokens]:
    """Tokens of each request, conversation by conversation."""
    lengths = np.minimum(1 + random.lognormal(0.5, kind.length, count).astype(int), 200)
    own = np.repeat(random.lognormal(0, kind.conversation, count), lengths)
    tokens = left * own * random.lognormal(5, kind.answer, own.size)
    return np.split(tokens, np.cumsum(lengths)[:-1])


def _sums(conversations: Sequence[Tokens]) -> Clusters:
    return [(float(tokens.sum()), float(tokens.size)) for tokens in conversations]


def _fixed(found: Comparison) -> Interval:
    width = FIXED_Z * found.error
    return Interval(found.effect - width, found.effect + width)


class Row(msgspec.Struct, frozen=True):
    """Coverage in percent of the routes, and mean widths."""

    kind: str
    routes: int
    seed: int
    control_conversations: list[int]
    covered_at_each_look: list[float]
    covered_when_stopped: float
    covered_at_all_looks: float
    width: list[float]
    shifted: int
    fixed_covered_at_each_look: list[float]
    fixed_covered_when_stopped: float
    fixed_covered_at_all_looks: float
    fixed_width: list[float]
    requests_covered: float


def measure(kind: Kind, routes: int, seed: int, looks: int = LOOKS, treated: int = TREATED) -> Row:
    random = np.random.default_rng(seed)
    control = [next_look(None) * 2**i for i in range(looks)]
    readings = [Route(random, kind, control[-1], treated).read(looks) for _ in range(routes)]
    truth = math.log(kind.left)
    shown = [reading.shown for reading in readings]
    fixed = [reading.fixed for reading in readings]
    return Row(
        kind.name,
        routes,
        seed,
        control,
        covered_at_each_look=_at_each(shown, truth),
        covered_when_stopped=_when_stopped(shown, truth),
        covered_at_all_looks=_at_all(shown, truth),
        width=_widths(shown),
        shifted=sum(each[-1].shifted for each in shown),
        fixed_covered_at_each_look=_at_each(fixed, truth),
        fixed_covered_when_stopped=_when_stopped(fixed, truth),
        fixed_covered_at_all_looks=_at_all(fixed, truth),
        fixed_width=_widths(fixed),
        requests_covered=_percent(_holds(reading.requests, truth) for reading in readings),
    )


def _when_stopped(readings: list[list[Interval]], truth: float) -> float:
    return _percent(_holds(_stopped(each), truth) for each in readings)


def _at_all(readings: list[list[Interval]], truth: float) -> float:
    return _percent(all(_holds(i, truth) for i in each) for each in readings)


def _stopped(shown: list[Interval]) -> Interval:
    """What a reader believes who stops at the first interval without zero."""
    return next((each for each in shown if each.low > 0 or each.high < 0), shown[-1])


def _holds(shown: Interval, truth: float) -> bool:
    return shown.low <= truth <= shown.high


def _at_each(readings: list[list[Interval]], truth: float) -> list[float]:
    return [_percent(_holds(each, truth) for each in look) for look in zip(*readings, strict=True)]


def _widths(readings: list[list[Interval]]) -> list[float]:
    return [
        round(mean(each.high - each.low for each in look), 3)
        for look in zip(*readings, strict=True)
    ]


def _percent(held: Iterable[bool]) -> float:
    return round(100 * mean(map(float, held)), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--routes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--looks", type=int, default=LOOKS)
    parser.add_argument("--treated", type=int, default=TREATED, help="for each in the control arm")
    arguments = parser.parse_args()
    for kind in KINDS:
        row = measure(kind, **vars(arguments))
        print(json.dumps(msgspec.structs.asdict(row)), flush=True)


if __name__ == "__main__":
    main()
