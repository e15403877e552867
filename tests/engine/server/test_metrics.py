"""`/metrics`: parsed as Prometheus does, against what really happened."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from engine.server.metrics import EngineMetrics
from tests.fakes.engine import LETTERS, Served, fake_engine, serve

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
