from __future__ import annotations

from benchmarks.client import Answer
from benchmarks.interference import (
    LONG_PROMPT_TOKENS,
    SHORT_PROMPT_TOKENS,
    compared,
    long_arrivals,
    short_arrivals,
)


def answers(tokens: int, *first_s: float) -> list[Answer]:
    return [Answer(tokens, 0.0, [one, one + 0.01]) for one in first_s]


def test_short_requests_are_the_same_for_the_same_seed() -> None:
    arrivals = short_arrivals(20, seed=1)
    assert arrivals == short_arrivals(20, seed=1) != short_arrivals(20, seed=2)
    assert len(arrivals) == 80
    shortest, longest = SHORT_PROMPT_TOKENS
    assert all(shortest <= one.prompt_tokens <= longest for one in arrivals)
    assert all(0 <= one.at_s <= 20 for one in arrivals)


def test_long_ones_come_every_three_seconds() -> None:
    assert [one.at_s for one in long_arrivals(9.5)] == [0, 3, 6, 9]


def test_each_class_is_compared_with_itself() -> None:
    quiet = answers(32, 0.1, 0.1) + answers(200, 0.2)
    disturbed = answers(32, 0.1, 0.3) + answers(200, 0.2) + answers(LONG_PROMPT_TOKENS, 2.0)
    found = {(row["prompt"], row["beside"]): row for row in compared(quiet, disturbed)}
    assert found["1 to 64", "long prompts"]["ttft_p95_ms_over_quiet"] == 3.0
    assert found["129 to 256", "long prompts"]["ttft_p95_ms_over_quiet"] == 1.0
    assert found["all short", "long prompts"]["ttft_p95_ms_over_quiet"] == 1.5
    assert found["all short", "long prompts"]["requests"] == 3
    assert found["over 256", "long prompts"]["ttft_p95_ms_over_quiet"] is None
    assert ("over 256", "nothing") not in found
