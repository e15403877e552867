"""`/metrics`: parsed as Prometheus does, against what really happened."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from statistics import mean
from typing import Any

import httpx2
import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from engine.server.metrics import EngineMetrics
from tests.fakes.clock import FakeClock
from tests.fakes.engine import LETTERS, Served, fake_engine, serve, until

HI = [{"role": "user", "content": "x" * 100}]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serve(fake_engine()) as served:
        yield served


async def scrape(session: httpx2.AsyncClient) -> dict[str, float]:
    """Samples by name and labels."""
    answer = await session.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.name.startswith("fewer_")
        assert family.documentation.endswith(".")
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


async def ask(session: httpx2.AsyncClient, **fields: Any) -> None:
    body = {"messages": HI, "max_tokens": 8, "allowed_token_ids": LETTERS} | fields
    assert (await session.post("/v1/chat/completions", json=body)).status_code == 200


async def test_what_happened_is_counted(served: Served) -> None:
    async with httpx2.AsyncClient(base_url=served.http, headers=served.headers) as session:
        before = await scrape(session)
        assert before["fewer_num_requests_running"] == 0
        for _ in range(3):
            await ask(session)
        await ask(session, n=2, stream=True)
        now = await scrape(session)
    prompt_tokens = 1 + len("user:") + 100
    assert now["fewer_num_requests_running"] == now["fewer_num_requests_waiting"] == 0
    assert now["fewer_kv_cache_usage_ratio"] == 0
    assert now["fewer_requests_accepted_total"] == 4
    assert now["fewer_prompt_tokens_total"] == 4 * prompt_tokens
    assert now["fewer_generation_tokens_total"] == 5 * 8
    assert now["fewer_choices_finished_total{reason=length}"] == 5
    assert now["fewer_num_preemptions_total"] == now["fewer_recomputed_tokens_total"] == 0
    assert now["fewer_prefix_cache_queries_total"] >= 4 * prompt_tokens
    assert now["fewer_prefix_cache_hits_total"] >= 3 * 96
    first = "fewer_time_to_first_token_seconds_count"
    assert now[f"{first}{{prefix_cache=miss}}"] + now[f"{first}{{prefix_cache=hit}}"] == 4
    assert now["fewer_request_queue_time_seconds_count"] == 4
    assert now["fewer_inter_token_latency_seconds_count"] == 5 * 7
    assert now["fewer_e2e_request_latency_seconds_count"] == 4


async def test_guesses_are_counted_by_who_made_them() -> None:
    async with (
        serve(fake_engine(speculation="auto", clock=FakeClock())) as served,
        httpx2.AsyncClient(base_url=served.http, headers=served.headers) as session,
    ):
        body = {"messages": HI, "max_tokens": 64, "allowed_token_ids": LETTERS, "temperature": 0}
        told = (await session.post("/v1/chat/completions", json=body)).json()
        said = told["choices"][0]["message"]["content"]
        body["prediction"] = {"type": "content", "content": [{"type": "text", "text": said}]}
        again = (await session.post("/v1/chat/completions", json=body)).json()
        now = await scrape(session)
    assert again["choices"][0]["message"]["content"] == said
    details = again["usage"]["completion_tokens_details"]
    accepted = now["fewer_spec_accepted_tokens_total{proposer=prediction}"]
    assert details["accepted_prediction_tokens"] == accepted > 0
    drafted = now["fewer_spec_drafted_tokens_total{proposer=prediction}"]
    assert details["rejected_prediction_tokens"] == drafted - accepted


PROMPT_TOKENS, OUTPUT_TOKENS = 2_000, 50


def long(number: int) -> list[dict[str, Any]]:
    """A prompt of so many tokens, unlike the others from its first."""
    return [{"role": "user", "content": f"{number:>6}".ljust(PROMPT_TOKENS - 6, "x")}]


async def timed(session: httpx2.AsyncClient, number: int) -> tuple[float, float]:
    """Seconds to the first token of a stream, and between two, by its client's clock."""
    body = {"messages": long(number), "max_tokens": OUTPUT_TOKENS, "stream": True}
    moments = []
    began = time.monotonic()
    async with session.stream(
        "POST", "/v1/chat/completions", json=body | {"allowed_token_ids": LETTERS}
    ) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["delta"]:
                moments.append(time.monotonic())
    return moments[0] - began, (moments[-1] - moments[0]) / (OUTPUT_TOKENS - 1)


async def test_times_are_those_of_the_clients_clock() -> None:
    """B51: 20 streams of chunked prefill, then cache hits, whole answers, and who left early."""
    first, between = "fewer_time_to_first_token_seconds", "fewer_inter_token_latency_seconds"

    step_s = 0.001

    def run(batch: Any) -> None:
        time.sleep(step_s + 4e-6 * len(batch.tokens))

    engine = fake_engine(on_run=run, max_model_len=4096, max_num_batched_tokens=256)
    async with (
        serve(engine) as served,
        httpx2.AsyncClient(base_url=served.http, headers=served.headers, timeout=30) as session,
    ):
        seen = await asyncio.gather(*(timed(session, number) for number in range(20)))
        now = await scrape(session)
        count = now[f"{first}_count{{prefix_cache=miss}}"]
        assert count == 20
        by_engine = now[f"{first}_sum{{prefix_cache=miss}}"] / count
        assert by_engine == pytest.approx(mean(s for s, _ in seen), rel=0.2)
        by_engine = now[f"{between}_sum"] / now[f"{between}_count"]
        assert by_engine == pytest.approx(mean(s for _, s in seen), rel=0.2)

        for number in range(5):
            await timed(session, number)
            await ask(session, messages=long(100 + number))
        step_s = 0.05  # nobody gets to a first token before it is noticed that they left
        for number in range(5):
            leaves = asyncio.create_task(timed(session, 200 + number))
            await until(lambda: engine.core.statistics().running == 1)
            leaves.cancel()
            await until(served.drained)
        now = await scrape(session)
    assert now[f"{first}_count{{prefix_cache=hit}}"] == 5
    assert now[f"{first}_count{{prefix_cache=miss}}"] == 25
    assert now["fewer_choices_finished_total{reason=cancelled}"] == 5
    assert now["fewer_request_queue_time_seconds_count"] == 30


async def test_histograms_are_cumulative_and_end_at_infinity(served: Served) -> None:
    async with httpx2.AsyncClient(base_url=served.http, headers=served.headers) as session:
        await ask(session)
        now = await scrape(session)
    name = "fewer_inter_token_latency_seconds_bucket"
    buckets = [value for key, value in now.items() if key.startswith(name)]
    assert buckets == sorted(buckets)
    assert now[f"{name}{{le=+Inf}}"] == now["fewer_inter_token_latency_seconds_count"] == 7
    assert now["fewer_inter_token_latency_seconds_sum"] > 0


def test_two_engines_do_not_meet_in_a_global_registry() -> None:
    one, two = (EngineMetrics(fake_engine().core.statistics) for _ in range(2))
    assert one.text() == two.text()
    assert not [name for name in REGISTRY._names_to_collectors if name.startswith("fewer_num")]
