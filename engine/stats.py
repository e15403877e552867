"""What the engine counts about itself, and the frozen snapshot that metrics and tests read."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

from engine.speculate.tally import Tally

_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
    300.0,
)  # fmt: skip

FINISH_REASONS = ("stop", "length", "cancelled", "failed")


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """A Prometheus histogram: `buckets[i]` observations were at most `bounds[i]` (cumulative)."""

    bounds: tuple[float, ...]
    buckets: tuple[int, ...]
    count: int
    sum: float


class Histogram:
    """Counts of observations under fixed upper bounds."""

    def __init__(self, bounds: tuple[float, ...] = _SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    @property
    def count(self) -> int:
        return sum(self._counts)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def snapshot(self) -> HistogramSnapshot:
        cumulative, total = [], 0
        for count in self._counts:
            total += count
            cumulative.append(total)
        return HistogramSnapshot(self._bounds, tuple(cumulative[:-1]), total, self._sum)


@dataclass(frozen=True, slots=True)
class Statistics:
    """One look at the engine; counters since start. Consistent to within one step.

    running, waiting, paused: choices that compute, that could and do not, and that are paused
    kv_usage_ratio:        owned blocks over all blocks; free-but-cached ones count as free
    kv_capacity_tokens:    tokens the pool holds
    prefix_cache_queries_tokens, prefix_cache_hits_tokens: prompt tokens looked up when choices
                           first started, and those found; returning after a preemption adds none
    preemptions:           choices that lost their blocks to others
    recomputed_tokens:     tokens computed again, after a preemption or a pause
    speculation:           guesses by the name of who made them
    steps, step_time_s:    steps run, and how long the executor took for each
    seconds_since_step:    how long the running step, or the wait for one, has lasted; 0 when idle
    prompt_tokens, generation_tokens: tokens of accepted prompts, and of outputs
    requests_accepted:     requests let into the queue
    choices_finished:      by reason: stop, length, cancelled, failed
    executor_failures:     steps that raised
    time_to_first_token_s: from arrival to a request's first token, once for each request that
                           produced one; by prefix cache `hit` and `miss`
    queue_time_s:          from arrival to a request's first step; same requests
    inter_token_latency_s: between two tokens of one choice
    request_latency_s:     from arrival to the terminal of requests that succeeded
    """

    running: int
    waiting: int
    paused: int
    kv_usage_ratio: float
    kv_capacity_tokens: int
    prefix_cache_queries_tokens: int
    prefix_cache_hits_tokens: int
    preemptions: int
    recomputed_tokens: int
    speculation: dict[str, Tally]
    steps: int
    step_time_s: HistogramSnapshot
    seconds_since_step: float
    prompt_tokens: int
    generation_tokens: int
    requests_accepted: int
    choices_finished: dict[str, int]
    executor_failures: int
    time_to_first_token_s: dict[str, HistogramSnapshot]
    queue_time_s: HistogramSnapshot
    inter_token_latency_s: HistogramSnapshot
    request_latency_s: HistogramSnapshot


class Recorder:
    """The counters behind `Statistics` that no other part keeps. Written by the core thread."""

    def __init__(self) -> None:
        self.prompt_tokens = self.generation_tokens = 0
        self.requests_accepted = self.executor_failures = 0
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.step_time_s = Histogram()
        self.first_token_s = {"hit": Histogram(), "miss": Histogram()}
        self.queue_time_s = Histogram()
        self.inter_token_s = Histogram()
        self.request_latency_s = Histogram()

    def snapshot(
        self,
        *,
        running: int,
        waiting: int,
        paused: int,
        kv_usage_ratio: float,
        kv_capacity_tokens: int,
        prefix_cache_queries_tokens: int,
        prefix_cache_hits_tokens: int,
        preemptions: int,
        recomputed_tokens: int,
        speculation: dict[str, Tally],
        seconds_since_step: float,
    ) -> Statistics:
        """These counters, with what scheduler and core know of now. Any thread."""
        return Statistics(
            running=running,
            waiting=waiting,
            paused=paused,
            kv_usage_ratio=kv_usage_ratio,
            kv_capacity_tokens=kv_capacity_tokens,
            prefix_cache_queries_tokens=prefix_cache_queries_tokens,
            prefix_cache_hits_tokens=prefix_cache_hits_tokens,
            preemptions=preemptions,
            recomputed_tokens=recomputed_tokens,
            speculation={name: replace(tally) for name, tally in list(speculation.items())},
            seconds_since_step=seconds_since_step,
            steps=self.step_time_s.count,
            step_time_s=self.step_time_s.snapshot(),
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
            requests_accepted=self.requests_accepted,
            choices_finished=dict(self.finished),
            executor_failures=self.executor_failures,
            time_to_first_token_s={
                label: histogram.snapshot() for label, histogram in self.first_token_s.items()
            },
            queue_time_s=self.queue_time_s.snapshot(),
            inter_token_latency_s=self.inter_token_s.snapshot(),
            request_latency_s=self.request_latency_s.snapshot(),
        )

    def finish(self, reason: str) -> None:
        """Count a choice that ended; `reason` is one of FINISH_REASONS."""
        self.finished[reason] += 1

    def token(self, since_last_s: float | None) -> None:
        """Count a token of a choice; None for its first."""
        self.generation_tokens += 1
        if since_last_s is not None:
            self.inter_token_s.observe(since_last_s)

    def first_token(self, age_s: float, queued_s: float, *, cached: bool) -> None:
        """Count a request that produced its first token: once each, never for the others."""
        self.first_token_s["hit" if cached else "miss"].observe(age_s)
        self.queue_time_s.observe(queued_s)
