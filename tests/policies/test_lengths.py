"""Lengths that are known in part. What must never happen: cut answers taken for whole ones."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import NormalDist

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.lengths import Lengths, lengths_of


def test_without_cut_answers_it_is_the_plain_percentile() -> None:
    lengths = lengths_of((tokens, False) for tokens in range(1, 101))
    assert lengths.answers == 100
    assert [lengths.percentile(p) for p in range(1, 100)] == list(range(1, 100))


def test_by_hand() -> None:
    """Kaplan-Meier on six answers: 1 - 5/6 · 3/4 · 1/2, the cut ones in between."""
    lengths = lengths_of([(3, False), (5, True), (7, False), (8, True), (9, False), (20, True)])
    assert lengths.percentile(16) == 3
    assert lengths.percentile(17) == 7
    assert lengths.percentile(37) == 7
    assert lengths.percentile(38) == 9
    assert lengths.percentile(68) == 9
    assert lengths.percentile(69) is None


def test_what_was_cut_at_a_length_is_longer_than_what_ended_there() -> None:
    assert lengths_of([(5, True), (5, False)]).percentile(50) == 5
    assert lengths_of([(5, True), (5, False)]).percentile(51) is None


def test_of_nothing_nothing_is_known() -> None:
    assert lengths_of([]) == Lengths(0, (None,) * 99)
    assert lengths_of([(512, True)] * 300).percentile(50) is None


def exponential(rng: random.Random) -> float:
    return rng.expovariate(1 / 120)


def lognormal(rng: random.Random) -> float:
    return rng.lognormvariate(4.5, 0.8)


def true_exponential(share: float) -> float:
    return -120 * math.log(1 - share)


def true_lognormal(share: float) -> float:
    return math.exp(4.5 + 0.8 * NormalDist().inv_cdf(share))


@pytest.mark.parametrize(
    ("draw", "true"), [(exponential, true_exponential), (lognormal, true_lognormal)]
)
@pytest.mark.parametrize("seed", range(3))
def test_known_distributions_are_found_behind_cuts_of_any_length(
    draw: Callable[[random.Random], float], true: Callable[[float], float], seed: int
) -> None:
    """A third to a half of the answers is cut, by limits that differ; the estimate is within 10 %,
    and what takes cut answers for whole ones, or leaves them out, is not."""
    rng = random.Random(seed)
    observed = []
    for _ in range(6000):
        length, limit = draw(rng), rng.choice([60, 200, 2000])
        observed.append((math.ceil(min(length, limit)), length > limit))
    lengths = lengths_of(observed)
    for p in (50, 80, 90, 95):
        assert lengths.percentile(p) == pytest.approx(true(p / 100), rel=0.1)
    as_whole = lengths_of((tokens, False) for tokens, _ in observed)
    left_out = lengths_of((tokens, False) for tokens, cut in observed if not cut)
    for wrong in (as_whole, left_out):
        found = wrong.percentile(80)
        assert found is not None
        assert found < 0.85 * true(0.8)


observations = st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=60)


@settings(deadline=None)
@given(observations)
def test_percentiles_rise_and_are_lengths_at_which_answers_ended(
    observed: list[tuple[int, bool]],
) -> None:
    lengths = lengths_of(observed)
    known = [each for each in lengths.percentiles if each is not None]
    assert known == sorted(known)
    assert lengths.percentiles == (*known, *[None] * (99 - len(known)))
    assert set(known) <= {tokens for tokens, cut in observed if not cut}
    assert lengths == lengths_of(observed[::-1])


@settings(deadline=None)
@given(observations, st.integers(0, 59))
def test_a_cut_never_makes_answers_look_shorter(
    observed: list[tuple[int, bool]], place: int
) -> None:
    """Whether an answer ended or was cut at a length: the cut one was at least as long."""
    if place >= len(observed):
        return
    tokens, _ = observed[place]
    ended = lengths_of([*observed[:place], (tokens, False), *observed[place + 1 :]])
    cut = lengths_of([*observed[:place], (tokens, True), *observed[place + 1 :]])
    for p in range(1, 100):
        short, long = ended.percentile(p), cut.percentile(p)
        assert long is None or (short is not None and short <= long)
