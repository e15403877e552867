from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.client import Answer
from benchmarks.figures import by_length, latency, length_class, percentile, ratio


def answer(prompt_tokens: int, *text_s: float) -> Answer:
    return Answer(prompt_tokens, sent_s=0.0, text_s=list(text_s), tokens=len(text_s))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0.1, 100))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(
    values: list[float], percent: float
) -> None:
    found = percentile(values, percent)
    needed = math.ceil(len(values) * percent / 100)
    assert found in values
    assert sum(value <= found for value in values) >= needed
    assert sum(value < found for value in values) < needed


def test_percentiles_of_a_hundred_values() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert [percentile(values, p) for p in (50, 95, 99, 100)] == [50, 95, 99, 100]


def test_there_is_no_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 50)


def test_latency_is_of_first_pieces_and_of_the_gaps_after_them() -> None:
    row = latency([answer(8, 0.1, 0.12, 0.2), answer(8, 0.3)])
    assert row == {
        "requests": 2,
        "ttft_p50_ms": 100.0,
        "ttft_p95_ms": 300.0,
        "itl_p50_ms": 20.0,
        "itl_p95_ms": 80.0,
        "itl_p99_ms": 80.0,
        "longest_gap_ms": 80.0,
    }


def test_what_cannot_be_told_is_none() -> None:
    assert latency([answer(8, 0.1)])["itl_p50_ms"] is None
    assert latency([])["ttft_p95_ms"] is None


def test_the_speed_of_a_stream_leaves_its_first_token_out() -> None:
    assert answer(8, 1.0, 1.5, 2.0).tokens_per_s == 2.0


@pytest.mark.parametrize(
    ("tokens", "name"),
    [(1, "1 to 256"), (256, "1 to 256"), (257, "257 to 1,024"), (1025, "over 1,024")],
)
def test_classes_hold_their_upper_ends(tokens: int, name: str) -> None:
    assert length_class(tokens, (256, 1024)) == name


def test_classes_come_shortest_first_and_empty_ones_not_at_all() -> None:
    classes = by_length([answer(2000, 1.0), answer(3, 1.0), answer(4, 1.0)], (256, 1024))
    assert {name: len(answers) for name, answers in classes.items()} == {
        "1 to 256": 2,
        "over 1,024": 1,
    }
    assert next(iter(classes)) == "1 to 256"


def test_a_ratio_with_nothing_is_none() -> None:
    assert ratio({"x": 3.0}, {"x": 2.0}, "x") == 1.5
    assert ratio({"x": 3.0}, {"x": None}, "x") is None
    assert ratio({"x": 3.0}, {"x": 0.0}, "x") is None
