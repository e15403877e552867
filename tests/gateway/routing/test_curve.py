"""What a way of choosing between two models is worth."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.routing.curve import Bootstrap, cost, interval, lengths, recovered
from gateway.routing.outcomes import Outcomes

TEN = Outcomes(
    ["字" * (i + 1) for i in range(10)],
    np.array([1.0] * 6 + [0.0] * 4),
    np.array([1.0] * 10),
    np.full(10, 1.0),
    np.full(10, 11.0),
)
"""Only the four longest prompts gain from the stronger model."""


@pytest.mark.parametrize(
    ("share", "gap"), [(0.0, 0.0), (0.1, 0.25), (0.2, 0.5), (0.4, 1.0), (1.0, 1.0)]
)
def test_the_highest_scores_go_to_the_stronger_model(share: float, gap: float) -> None:
    assert recovered(lengths(TEN), TEN, share) == pytest.approx(gap)


def test_the_wrong_way_round_recovers_nothing() -> None:
    assert recovered(-lengths(TEN), TEN, 0.6) == 0.0


@pytest.mark.parametrize(("share", "mean"), [(0.0, 1.0), (0.5, 6.0), (1.0, 11.0)])
def test_a_strong_call_costs_what_it_costs(share: float, mean: float) -> None:
    assert cost(lengths(TEN), TEN, share) == pytest.approx(mean)
    bare = Outcomes(TEN.prompts, TEN.weak, TEN.strong)
    assert cost(lengths(bare), bare, share) is None


def many(count: int = 2000) -> tuple[Outcomes, np.ndarray]:
    """Gains of which half is known beforehand."""
    random = np.random.default_rng(0)
    hard = random.random(count) < 0.5
    weak = (random.random(count) < np.where(hard, 0.4, 0.9)).astype(float)
    return Outcomes(["x"] * count, weak, np.ones(count)), hard.astype(float)


def test_intervals_hold_the_estimate_and_narrow_with_more_prompts() -> None:
    widths = []
    for count in (200, 2000):
        outcomes, scores = many(count)
        low, high = interval(Bootstrap(outcomes).recovered(scores, 0.5))
        assert low < recovered(scores, outcomes, 0.5) < high
        widths.append(high - low)
    assert widths[1] < widths[0] / 2


def test_ways_are_compared_on_the_same_samples() -> None:
    outcomes, scores = many()
    bootstrap = Bootstrap(outcomes)
    same = bootstrap.recovered(scores, 0.3) - bootstrap.recovered(scores, 0.3)
    assert interval(same) == (0.0, 0.0)
    chance = np.random.default_rng(1).random(len(outcomes))
    low, _ = interval(bootstrap.recovered(scores, 0.3) - bootstrap.recovered(chance, 0.3))
    assert low > 0
