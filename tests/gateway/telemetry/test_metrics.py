"""What one answer adds to the series."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.protocol.frames import Accepted, Event, Usage
from gateway.telemetry import metrics as module
from gateway.telemetry.metrics import Meter, Metrics, Spent


class Clock:
    """`time.monotonic` of the test's making."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def series(metrics: Metrics) -> dict[str, float]:
    lines = metrics.text().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name.replace('{model="m",route="r"}', ""): float(value) for name, value in pairs}


def test_times_are_the_clients_own(clock: Clock) -> None:
    """B51: waiting counts, each token once, and every request with output exactly once."""
    metrics = Metrics()
    meter = Meter(metrics, "r", "m", begun_s=100.0)
    clock.now_s = 102.0
    meter.observe([Accepted("i", 4)])
    clock.now_s = 103.0
    meter.observe([Event("i", text="a", tokens=1)])
    clock.now_s = 103.4
    meter.observe([Event("i", text="b", tokens=1), Event("i", text="c", tokens=3)])
    meter.observe([Event("i", usage=Usage(prompt_tokens=4, completion_tokens=5))])
    assert meter.settle(never) == Spent(4, 5)
    found = series(metrics)
    assert found["fewer_time_to_first_token_seconds_sum"] == pytest.approx(3.0)
    assert found["fewer_time_to_first_token_seconds_count"] == 1
    assert found["fewer_inter_token_latency_seconds_sum"] == pytest.approx(0.1)
    assert found["fewer_prompt_tokens_total"] == 4
    assert found["fewer_generation_tokens_total"] == 5
    assert found["fewer_usage_estimated_total"] == 0


def test_without_output_nothing_is_observed(clock: Clock) -> None:
    metrics = Metrics()
    meter = Meter(metrics, "r", "m", begun_s=100.0)
    meter.observe([Accepted("i", 4)])
    assert meter.settle(never) == Spent(4)
    assert series(metrics)["fewer_time_to_first_token_seconds_count"] == 0
    assert series(metrics)["fewer_prompt_tokens_total"] == 4


def test_what_was_cut_off_counts_what_passed(clock: Clock) -> None:
    metrics = Metrics()
    meter = Meter(metrics, "r", "m", begun_s=100.0)
    meter.observe([Event("i", text="a", tokens=2)])
    assert meter.settle(lambda: 7) == Spent(7, 2, estimated=True)
    found = series(metrics)
    assert found["fewer_prompt_tokens_total"] == 7
    assert found["fewer_generation_tokens_total"] == 2
    assert found["fewer_usage_estimated_total"] == 1


def test_an_accepted_prompt_needs_no_estimate(clock: Clock) -> None:
    meter = Meter(Metrics(), "r", "m", begun_s=100.0)
    meter.observe([Accepted("i", 4), Event("i", text="a", tokens=2)])
    assert meter.settle(never) == Spent(4, 2, estimated=True)


PROCESS = """
from engine.protocol.frames import Event
from gateway.telemetry.metrics import Metrics, Spent

metrics = Metrics()
metrics.count("r", "m", Spent(1, 2))
print(metrics.text().decode())
"""


def test_any_process_tells_the_sum_of_all(tmp_path: Path) -> None:
    told = ""
    for _ in range(2):
        told = subprocess.run(
            [sys.executable, "-c", PROCESS],
            env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
            cwd=Path(__file__).parents[3],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
    assert 'fewer_generation_tokens_total{model="m",route="r"} 4.0' in told


def never() -> int:
    raise AssertionError("nothing is to be estimated")
