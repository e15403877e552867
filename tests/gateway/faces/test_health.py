"""Liveness, readiness and metrics."""

from __future__ import annotations

import asyncio

import pytest

from gateway.backends.scripted import ScriptedBackend
from gateway.config import Config, ModelConfig, RouteConfig
from gateway.faces import health
from tests.fakes.serving import HELLO, Gateway, Serve, scripted_config

UPSTREAM = ModelConfig(openai="http://127.0.0.1:1/v1")


async def test_live_says_nothing_of_backends(serve: Serve) -> None:
    gateway = await serve(backends={"steps": [], "ready": False})
    assert (await gateway.client.get("/health/live")).json() == {"status": "live"}


async def test_ready_is_at_least_one_route_that_can_be_served(serve: Serve) -> None:
    """B53: what a backend says of itself is believed at once."""
    config = Config(
        models={"a": UPSTREAM, "b": UPSTREAM},
        routes={"x": RouteConfig("a"), "y": RouteConfig("b")},
    )
    gateway: Gateway = await serve(config, HELLO)
    a, b = gateway.backends.values()
    assert isinstance(a, ScriptedBackend)
    assert isinstance(b, ScriptedBackend)
    a.is_ready = False
    response = await gateway.client.get("/health/ready")
    assert response.status_code == 200
    assert response.json() == {
        "status": "ready",
        "routes": {"x": False, "y": True},
        "models": {"a": False, "b": True},
    }
    b.is_ready = False
    response = await gateway.client.get("/health/ready")
    assert (response.status_code, response.json()["status"]) == (503, "not ready")
    assert response.headers["retry-after"] == "1"
    b.is_ready = True
    assert (await gateway.client.get("/health/ready")).status_code == 200


async def test_a_fallback_keeps_a_route_servable(serve: Serve) -> None:
    gateway: Gateway = await serve(scripted_config("one", "two"))
    gateway.scripted.is_ready = False
    assert (await gateway.client.get("/health/ready")).json()["routes"] == {"chat": True}


class Silent(ScriptedBackend):
    """Does not know."""

    async def ready(self) -> bool:
        await asyncio.Event().wait()
        return True


async def test_a_backend_that_does_not_say_is_not_ready(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "READY_TIMEOUT_S", 0.05)
    gateway = await serve(backends={"one": Silent("one", HELLO)})
    assert (await gateway.client.get("/health/ready")).status_code == 503


async def test_metrics_count_by_route_and_status(serve: Serve) -> None:
    gateway: Gateway = await serve(scripted_config(budget=5))
    await gateway.chat()
    await gateway.chat(stream=True)
    await gateway.chat(model="made-up-by-a-client")
    text = (await gateway.client.get("/metrics")).text
    for line in (
        'fewer_requests_total{route="chat",status="200"} 2.0',
        'fewer_requests_total{route="",status="404"} 1.0',
        'fewer_time_to_first_token_seconds_count{model="one",route="chat"} 2.0',
        'fewer_inter_token_latency_seconds_count{model="one",route="chat"}',
        'fewer_generation_tokens_total{model="one",route="chat"} 4.0',
        'fewer_prompt_tokens_total{model="one",route="chat"} 2.0',
        'fewer_policy_decisions_total{action="rewrite",mode="active",policy="budget",route="chat"}',
        'fewer_e2e_request_latency_seconds_count{route="chat"} 2.0',
    ):
        assert line in text
    assert "made-up" not in text


async def test_tokens_are_metered_whether_or_not_usage_was_asked_for(serve: Serve) -> None:
    """B03: a usage event without text harms nothing and is counted."""
    script = {"steps": [{"text": "a"}, {"usage": {"prompt_tokens": 7, "completion_tokens": 9}}]}
    gateway: Gateway = await serve(backends=script)
    await gateway.chat(stream=True)
    text = (await gateway.client.get("/metrics")).text
    assert 'fewer_generation_tokens_total{model="one",route="chat"} 9.0' in text
    assert 'fewer_prompt_tokens_total{model="one",route="chat"} 7.0' in text


async def test_while_draining_it_is_not_ready_and_takes_no_work(serve: Serve) -> None:
    gateway: Gateway = await serve()
    gateway.server.lifespan.state["drain"].start()
    ready = await gateway.client.get("/health/ready")
    assert (ready.status_code, ready.json()["status"]) == (503, "draining")
    assert (await gateway.client.get("/health/live")).status_code == 200
    refused = await gateway.chat()
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "5"
    assert refused.json()["error"]["code"] == "unavailable"
