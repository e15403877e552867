"""`/metrics`: the core's statistics as Prometheus text, under vLLM's names with our prefix.

Read when scraped, from the same frozen snapshot that tests read. The registry is our own, so
that two engines in one process, as in tests, do not meet in a global one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from engine.stats import HistogramSnapshot, Statistics

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_GAUGES = (
    ("num_requests_running", "running", "Choices that compute."),
    ("num_requests_waiting", "waiting", "Choices that could compute and do not yet."),
    ("num_requests_paused", "paused", "Choices whose reader is too slow."),
    ("kv_cache_usage_ratio", "kv_usage_ratio", "KV blocks owned; free-but-cached are free."),
    ("kv_cache_capacity_tokens", "kv_capacity_tokens", "Tokens that the KV pool holds."),
    ("seconds_since_step", "seconds_since_step", "Age of the running step; 0 when idle."),
)
_COUNTERS = (
    ("prefix_cache_queries", "prefix_cache_queries_tokens", "Prompt tokens looked up."),
    ("prefix_cache_hits", "prefix_cache_hits_tokens", "Prompt tokens found in the cache."),
    ("num_preemptions", "preemptions", "Choices that lost their blocks to others."),
    ("recomputed_tokens", "recomputed_tokens", "Tokens computed again, and not billed."),
    ("prompt_tokens", "prompt_tokens", "Tokens of accepted prompts."),
    ("generation_tokens", "generation_tokens", "Tokens of outputs."),
    ("requests_accepted", "requests_accepted", "Requests let into the queue."),
    ("steps", "steps", "Steps run."),
    ("executor_failures", "executor_failures", "Steps that failed."),
)
_SPECULATION = (
    ("spec_drafted_tokens", "drafted", "Tokens guessed, and verified in a step."),
    ("spec_accepted_tokens", "accepted", "Those of them that were right."),
)
_HISTOGRAMS = (
    ("inter_token_latency", "inter_token_latency_s", "Between two tokens of one choice."),
    ("request_queue_time", "queue_time_s", "From arrival to the first step."),
    ("e2e_request_latency", "request_latency_s", "From arrival to the end of the answer."),
    ("step", "step_time_s", "One step of the executor."),
)


class EngineMetrics(Collector):
    """A registry with one collector, which asks `statistics` at every scrape."""

    def __init__(self, statistics: Callable[[], Statistics]) -> None:
        self._statistics = statistics
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """The exposition, of type CONTENT_TYPE."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Nothing: naming the metrics at registration would need statistics before the start."""
        return []

    def collect(self) -> Iterator[Metric]:
        now = self._statistics()
        for name, field, help in _GAUGES:
            yield GaugeMetricFamily(f"fewer_{name}", help, value=getattr(now, field))
        for name, field, help in _COUNTERS:
            yield CounterMetricFamily(f"fewer_{name}", help, value=getattr(now, field))
        for name, field, help in _HISTOGRAMS:
            yield _histogram(name, help, {(): getattr(now, field)})
        yield _histogram(
            "time_to_first_token",
            "From arrival to the first token, queue included; by prefix cache hit or miss.",
            {(cache,): snapshot for cache, snapshot in now.time_to_first_token_s.items()},
            labels=("prefix_cache",),
        )
        finished = CounterMetricFamily(
            "fewer_choices_finished", "Choices that ended, by reason.", labels=("reason",)
        )
        for reason, count in now.choices_finished.items():
            finished.add_metric((reason,), count)
        yield finished
        for name, field, help in _SPECULATION:
            counted = CounterMetricFamily(f"fewer_{name}", help, labels=("proposer",))
            for proposer, tally in now.speculation.items():
                counted.add_metric((proposer,), getattr(tally, field))
            yield counted


def _histogram(
    name: str,
    help: str,
    snapshots: dict[tuple[str, ...], HistogramSnapshot],
    labels: tuple[str, ...] = (),
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(f"fewer_{name}_seconds", help, labels=labels)
    for values, snapshot in snapshots.items():
        bounds = [repr(bound) for bound in snapshot.bounds]
        buckets = [*zip(bounds, snapshot.buckets, strict=True), ("+Inf", snapshot.count)]
        family.add_metric(values, buckets, snapshot.sum)
    return family
