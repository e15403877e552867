"""What `/metrics` says of times, against the clock of the clients that waited."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from statistics import mean

import pytest

from tests.e2e.stack import Stack

pytestmark = pytest.mark.model

STREAMS = 6
LABELS = '{model="small",route="chat"}'


def test_times_are_those_of_the_clients_clock(stack: Stack) -> None:
    """B51, R35: queue included, one observation for each request that produced a token."""
    stack.ask(max_tokens=1)  # a histogram appears with its first observation
    before = told(stack)

    def first_token_s(number: int) -> float:
        began = time.monotonic()
        text = f"Story {number}: " + "It was a bright cold day in April. " * 25
        chunks = stack.stream(text, max_tokens=8, ignore_eos=True)
        while not (chunk := next(chunks))["choices"][0]["delta"].get("content"):
            pass
        taken_s = time.monotonic() - began
        for chunk in chunks:
            assert "error" not in chunk
        return taken_s

    with ThreadPoolExecutor(STREAMS) as pool:
        seen_s = list(pool.map(first_token_s, range(STREAMS)))
    after = told(stack)
    assert after[0] - before[0] == STREAMS
    assert (after[1] - before[1]) / STREAMS == pytest.approx(mean(seen_s), rel=0.2)


def told(stack: Stack) -> tuple[float, float]:
    """The gateway's count and sum of times to the first token."""
    name = "time_to_first_token_seconds"
    count, total = (
        stack.counter(f"{name}_{part}{LABELS}", stack.gateway) for part in ("count", "sum")
    )
    return count, total
