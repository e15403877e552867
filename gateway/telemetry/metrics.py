"""Prometheus metrics of the gateway. Labels come from the configuration, never from clients.

Names are vLLM's where it has one, with our prefix. With several workers each writes files under
PROMETHEUS_MULTIPROC_DIR, and whichever worker is asked sums them up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from typing import TypeVar

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from engine.protocol.frames import Accepted, Event, Started, StreamEvent, Usage

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

# OpenTelemetry's buckets for gen_ai.server.time_to_first_token, and vLLM's longer ones.
_FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0,
)  # fmt: skip
_INTER_TOKEN_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
)  # fmt: skip
_DURATION_S = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84,
)  # fmt: skip

_M = TypeVar("_M", Counter, Histogram)


class Spent(msgspec.Struct, frozen=True):
    """Tokens of one answer. estimated: whoever made it has not told them all."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: bool = False

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class Timing(msgspec.Struct, frozen=True):
    """How one answer came.

    first_token_s: arrival to first output; None when there was none
    per_token_s:   between first and last output, for each token after the first
    queue_ms:      in the engine's queue; None when the backend has not said
    cut:           a choice ended at its limit
    accepted_tokens, rejected_tokens: of a prediction, as far as it was verified
    """

    first_token_s: float | None = None
    per_token_s: float | None = None
    queue_ms: float | None = None
    cached_tokens: int = 0
    cut: bool = False
    accepted_tokens: int = 0
    rejected_tokens: int = 0


class Metrics:
    """All series of one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests, by how they ended.", "route", "status")
        self.duration = self._histogram(
            "e2e_request_latency_seconds", "Arrival to last byte.", _DURATION_S, "route"
        )
        self.first_token = self._histogram(
            "time_to_first_token_seconds",
            "Arrival to first output, of requests that had any.",
            _FIRST_TOKEN_S,
            "route",
            "model",
        )
        self.inter_token = self._histogram(
            "inter_token_latency_seconds",
            "Time between deliveries of output, for each token in the later one.",
            _INTER_TOKEN_S,
            "route",
            "model",
        )
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens in.", "route", "model")
        self.generation_tokens = self._counter("generation_tokens", "Tokens out.", "route", "model")
        self.usage_estimated = self._counter(
            "usage_estimated", "Answers whose tokens are estimates: their backend counted none."
        )
        self.decisions = self._counter(
            "policy_decisions", "What policies decided.", "route", "policy", "mode", "action"
        )
        self.arms = self._counter(
            "holdout_requests", "Requests by arm of a policy's holdout.", "route", "policy", "arm"
        )
        self.estimated_saved = self._counter(
            "estimated_saved_prompt_tokens",
            "Prompt tokens that policies took out, by estimate: not measured against a control.",
            "route",
            "policy",
        )
        self.saving = Gauge(
            "fewer_saving_ratio",
            "Share saved against the holdout's control arm: estimate and 95 % interval.",
            ("route", "policy", "measure", "bound"),
            registry=self._registry,
            multiprocess_mode="mostrecent",
        )
        self.cost_dollars = self._counter(
            "cost_dollars", "Cost of answers, of models with a price.", "route", "model"
        )
        self.ledger_dropped = self._counter(
            "ledger_dropped", "Requests that the ledger lost: its store could not be written."
        )

        self.recorder_dropped = self._counter(
            "recorder_dropped", "Requests that were not recorded: the file could not be written."
        )
        self.cascades = self._counter(
            "cascades",
            "Answers that a weaker model began: sure (it went on), unsure or failed (the stronger "
            "one answered), or unknown (it told no logprobs in time, and went on).",
            "route",
            "result",
        )

        self.cache_requests = self._counter(
            "cache_requests",
            "Requests by where their answer came from: hit (kept), joined (on its way to another), "
            "miss, or bypass (neither was asked).",
            "route",
            "result",
        )
        self.cache_shadow = self._counter(
            "cache_shadow", "What shadows of the policies would have done.", "route", "result"
        )
        self.cache_stored = self._counter("cache_stored", "Answers that were kept.", "route")
        self.cache_saved = self._counter(
            "cache_saved_tokens", "Tokens of answers that no model was asked for.", "route", "kind"
        )
        self.cache_errors = self._counter(
            "cache_errors", "Times that the cache's store could not be used."
        )
        self.cache_bytes = Gauge(
            "fewer_cache_bytes",
            "Room that kept answers take, where this process knows it.",
            registry=self._registry,
            multiprocess_mode="livesum",
        )

        self.children = self._counter(
            "child_generations",
            "Generations that policies asked for by themselves, by what came of them.",
            "route",
            "result",
        )
        self.record_store_errors = self._counter(
            "record_store_errors", "Times that the store of conversations' records failed."
        )
        self.limit_refusals = self._counter(
            "limit_refusals",
            "Requests that a limit refused, by the limit, and whether a key's, a tenant's or a "
            "route's.",
            "limit",
            "subject",
        )
        self.limit_store_errors = self._counter(
            "limit_store_errors", "Times that the store of limits could not be used."
        )

    def count(self, route: str, model: str, spent: Spent) -> None:
        """Tokens of one answer, when it has ended."""
        self.prompt_tokens.labels(route, model).inc(spent.prompt_tokens)
        self.generation_tokens.labels(route, model).inc(spent.completion_tokens)
        if spent.estimated:
            self.usage_estimated.inc()

    def save(self, route: str, spent: Spent) -> None:
        """Tokens of one answer that was made for another request, when it has ended."""
        self.cache_saved.labels(route, "prompt").inc(spent.prompt_tokens)
        self.cache_saved.labels(route, "completion").inc(spent.completion_tokens)

    def text(self) -> bytes:
        """Prometheus's text format: this process's series, or all workers' together."""
        folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        if not folder:
            return generate_latest(self._registry)
        together = CollectorRegistry()
        MultiProcessCollector(together, folder)  # type: ignore[no-untyped-call]
        return generate_latest(together)

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return _remembering(Counter(f"fewer_{name}", help, labels, registry=self._registry))

    def _histogram(
        self, name: str, help: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return _remembering(
            Histogram(f"fewer_{name}", help, labels, buckets=buckets, registry=self._registry)
        )


def _remembering(metric: _M) -> _M:
    """Its series are found at once: looking one up takes longer than counting in it."""
    metric.labels = cache(metric.labels)  # type: ignore[method-assign]
    return metric


class Meter:
    """Counts one answer as its events pass, whoever reads them and however.

    begun_s:  `time.monotonic()` of the request's arrival
    was_left: nobody has waited for its end. Of a prompt that a model was asked to read, the tokens
              count, or who leaves early enough could have it read prompts without end
    """

    def __init__(self, metrics: Metrics, route: str, model: str, begun_s: float) -> None:
        self._first_token = metrics.first_token.labels(route, model)
        self._inter_token = metrics.inter_token.labels(route, model)
        self._metrics, self._route, self._model = metrics, route, model
        self._last_s = self._first_s = begun_s
        self._begun_s = begun_s
        self._seen_tokens = self._first_tokens = 0
        self._started: Started | None = None
        self._cut = False
        self._accepted_tokens = 0
        self._usage: Usage | None = None
        self.was_left = False

    def observe(self, events: list[StreamEvent]) -> None:
        tokens = 0
        for event in events:
            if type(event) is Event:
                tokens += event.tokens
                if event.finish == "length":
                    self._cut = True
                if event.usage is not None:
                    self._usage = event.usage
            elif type(event) is Accepted:
                self._accepted_tokens = event.prompt_tokens
            elif type(event) is Started:
                self._started = event
        if not tokens:
            return
        now_s = time.monotonic()
        if self._seen_tokens == 0:
            self._first_token.observe(now_s - self._last_s)
            self._first_s, self._first_tokens = now_s, tokens
        else:
            self._inter_token.observe((now_s - self._last_s) / tokens)
        self._seen_tokens += tokens
        self._last_s = now_s

    @property
    def seen_tokens(self) -> int:
        """Of the output, so far."""
        return self._seen_tokens

    @property
    def timing(self) -> Timing:
        """As far as the answer has come."""
        later = self._seen_tokens - self._first_tokens
        started, usage = self._started, self._usage
        cached = usage.cached_tokens if usage else started.cached_tokens if started else 0
        return Timing(
            first_token_s=self._first_s - self._begun_s if self._seen_tokens else None,
            per_token_s=(self._last_s - self._first_s) / later if later else None,
            queue_ms=started.queue_ms if started else None,
            cached_tokens=cached,
            cut=self._cut,
            accepted_tokens=usage.accepted_prediction_tokens if usage else 0,
            rejected_tokens=usage.rejected_prediction_tokens if usage else 0,
        )

    def settle(self, estimate_prompt: Callable[[], int]) -> Spent:
        """The answer has ended, in whatever way.

        estimate_prompt: tokens of the prompt, asked for only when nobody has counted them
        """
        spent = self.spent(estimate_prompt)
        self._metrics.count(self._route, self._model, spent)
        return spent

    def spent(self, estimate_prompt: Callable[[], int]) -> Spent:
        """As the backend counted; of an answer that was cut off, what was seen of it."""
        usage, seen = self._usage, self._seen_tokens
        if usage is not None:
            return Spent(usage.prompt_tokens, usage.completion_tokens, usage.estimated)
        if not seen and not self.was_left:
            return Spent(self._accepted_tokens)
        return Spent(self._accepted_tokens or estimate_prompt(), seen, estimated=True)
