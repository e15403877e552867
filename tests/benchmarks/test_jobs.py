from __future__ import annotations

import pytest

from benchmarks.jobs import CONTESTS, Job, Reply, medians
from benchmarks.prompts import Prompts


@pytest.fixture
def prompts() -> Prompts:
    return Prompts(range(5000))


@pytest.mark.parametrize("name", CONTESTS)
def test_rounds_differ_in_their_prompts_and_not_in_their_lengths(
    name: str, prompts: Prompts
) -> None:
    one, other = (CONTESTS[name].make(prompts) for _ in range(2))
    assert list(map(len, one.prompts)) == list(map(len, other.prompts))
    assert one.outputs == other.outputs
    assert len(one.prompts) == len(one.outputs) >= one.concurrency
    assert all(a[:4] != b[:4] for a, b in zip(one.prompts, other.prompts, strict=True))


def test_decode_is_timed_after_its_first_token() -> None:
    job = Job([[1] * 128], [128], 1)
    assert CONTESTS["decode"].figures(job, Reply(1.5, [0.5])) == {"tokens/s": 127.0}


def test_prefill_is_timed_until_its_first_token() -> None:
    job = Job([[1] * 1024], [1], 1)
    figures = CONTESTS["prefill"].figures(job, Reply(9.0, [0.5]))
    assert figures == {"prompt tokens/s": 2048.0}


def test_a_batch_counts_what_came_out() -> None:
    job = Job([[1], [1]], [30, 70], 2)
    assert CONTESTS["batch"].figures(job, Reply(2.0, [0.1, 0.2])) == {"output tokens/s": 50.0}


def test_streams_show_their_longest_gap() -> None:
    job = Job([[1], [1]], [50, 50], 2)
    gaps_s = [0.01] * 98 + [0.02, 0.5]
    figures = CONTESTS["streams"].figures(job, Reply(2.0, [0.1, 0.3], gaps_s))
    assert figures == {
        "TTFT p50 ms": 100.0,
        "TTFT p95 ms": 300.0,
        "ITL p50 ms": 10.0,
        "ITL p95 ms": 10.0,
        "ITL p99 ms": 20.0,
        "longest gap ms": 500.0,
        "output tokens/s": 50.0,
    }


def test_medians_are_over_rounds() -> None:
    job = Job([[1] * 1024], [1], 1)
    replies = [(job, Reply(first_s, [first_s])) for first_s in (0.5, 0.25, 4.0)]
    assert medians(CONTESTS["prefill"], replies) == {"prompt tokens/s": 2048.0}
