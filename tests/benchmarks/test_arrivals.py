from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.arrivals import (
    LONGEST_OUTPUT_TOKENS,
    LONGEST_PROMPT_TOKENS,
    Arrival,
    clipped,
    poisson,
    read_trace,
    scaled,
)

TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 23:59:58.6805900,374,44
2023-11-17 00:00:00.1805900,9000,900
2023-11-17 00:00:08.6805900,5,0
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def test_a_trace_begins_at_its_first_request(trace: Path) -> None:
    arrivals = list(read_trace(trace))
    assert arrivals[0] == Arrival(0.0, 374, 44)
    assert arrivals[1].at_s == pytest.approx(1.5)


def test_a_file_of_another_shape_names_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("TIMESTAMP,Tokens\n2023-11-16 18:15:46.68,3\n")
    with pytest.raises(ValueError, match="ContextTokens"):
        list(read_trace(path))


def test_twice_as_fast_is_half_as_long_and_reaches_further(trace: Path) -> None:
    assert [one.at_s for one in scaled(read_trace(trace), 1.0, 5.0)] == pytest.approx([0, 1.5])
    assert [one.at_s for one in scaled(read_trace(trace), 2.0, 6.0)] == pytest.approx([0, 0.75, 5])


def test_lengths_are_clipped_to_what_is_let_through(trace: Path) -> None:
    _, long, short = clipped(list(read_trace(trace)))
    assert (long.prompt_tokens, long.output_tokens) == (
        LONGEST_PROMPT_TOKENS,
        LONGEST_OUTPUT_TOKENS,
    )
    assert (short.prompt_tokens, short.output_tokens) == (5, 1)


def test_a_drawn_trace_repeats_and_keeps_its_rate() -> None:
    arrivals = poisson(rate=20.0, seconds=100.0)
    assert arrivals == poisson(rate=20.0, seconds=100.0)
    assert len(arrivals) == pytest.approx(2000, rel=0.1)
    assert [one.at_s for one in arrivals] == sorted(one.at_s for one in arrivals)
    assert sorted(one.prompt_tokens for one in arrivals)[1000] == pytest.approx(300, rel=0.15)


def test_the_recorded_trace_reads(shared_data: Callable[[str], Path]) -> None:
    path = shared_data("azure_llm_2023/AzureLLMInferenceTrace_conv.csv")
    arrivals = scaled(read_trace(path), speed=1.0, seconds=60.0)
    assert len(arrivals) > 60
    assert all(one.prompt_tokens > 0 for one in arrivals)
