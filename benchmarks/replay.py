"""Open-loop replay of a trace of arrivals, reported by length class."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.arrivals import Arrival, clipped, poisson, read_trace, scaled
from benchmarks.bench import Bench, Work, say
from benchmarks.figures import Row, by_length, latency, milliseconds
from benchmarks.open_loop import Outcome, play

CLASS_BOUNDS_TOKENS = (256, 1024)
SYNTHETIC_RATE = 2.0
"""Requests a second that are drawn at speed 1."""


def works(trace: Path | None, speed: float) -> list[Work]:
    """The replay of a recorded trace, or of a drawn one where none is given."""

    def arrivals(seconds: float) -> list[Arrival]:
        if trace is None:
            return poisson(SYNTHETIC_RATE * speed, seconds)
        return scaled(read_trace(trace), speed, seconds)

    source = f"{trace.name}, {speed:g} times as fast" if trace else f"drawn, {speed:g} times 2/s"
    meaning = f"requests sent when they are due ({source}), by prompt length in tokens"

    async def measure(bench: Bench) -> list[Row]:
        return await _replay(bench, arrivals)

    return [Work("replay", meaning, measure)]


async def _replay(bench: Bench, arrivals: Callable[[float], list[Arrival]]) -> list[Row]:
    recorded = arrivals(bench.seconds)
    played = clipped(recorded)
    shortened = sum(one != other for one, other in zip(recorded, played, strict=True))
    say(f"replay: {len(played)} requests in {bench.seconds:g} s")
    outcome = await play(bench.client, bench.prompts, played)
    rows: list[Row] = [{"prompt": "all", **latency(outcome.answers)} | _totals(outcome, shortened)]
    for name, answers in by_length(outcome.answers, CLASS_BOUNDS_TOKENS).items():
        rows.append({"prompt": name, **latency(answers)})
    return rows


def _totals(outcome: Outcome, shortened: int) -> Row:
    tokens = sum(answer.tokens for answer in outcome.answers)
    return {
        "output_tokens_per_s": round(tokens / outcome.seconds, 1),
        "refused": outcome.refused,
        "shortened": shortened,
        "sent_late_ms": milliseconds(outcome.late_s),
    }
