"""Redis stopped, paused, slow, and started again under load: what becomes of limits. Show 7."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.budgets import counting
from gateway.budgets.claims import claims_of
from gateway.budgets.limits import Limits, Subject
from gateway.budgets.need import Need
from gateway.config import BudgetConfig, Config, LimitsConfig, RouteConfig, Secret
from gateway.stores.budget_redis import RedisBudgetStore
from gateway.stores.keys import KeyStore
from gateway.stores.redis import MAX_CONNECTIONS, RedisClient
from gateway.tenants import Tenants
from tests.fakes.redis_server import RedisServer, redis_server, slow_road
from tests.fakes.serving import Gateway, Serve, running, scripted_config

DEADLINE_MS = 100
SCRIPT: dict[str, Any] = {"steps": [{"text": "x", "repeat": 5}], "prompt_tokens": 10}
MILLION = 1_000_000
LIMITS = Limits(requests_per_minute=100, budget_tokens=100 * MILLION)
KEYS = 20


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[tuple[Tenants, list[str]]]:
    """With the texts of limited keys."""
    store = KeyStore(tmp_path / "keys.sqlite3")
    yield Tenants(store), [store.create(f"t{n}", limits=LIMITS).text for n in range(KEYS)]
    store.close()


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "AGAIN_AFTER_S", 0.02)


def config(url: str, deadline_ms: int = DEADLINE_MS, **more: Any) -> Config:
    limits = LimitsConfig(store=Secret(url), deadline_ms=deadline_ms, **more)
    routes = {"chat": RouteConfig("one", BudgetConfig(20))}
    return replace(scripted_config(), routes=routes, limits=limits)


async def ask(gateway: Gateway, key: str) -> tuple[int, int, float]:
    """Status, requests that are left, and the seconds it took."""
    begun_s = time.monotonic()
    response = await gateway.chat(headers={"authorization": f"Bearer {key}"})
    left = int(response.headers.get("x-ratelimit-remaining-requests", -1))
    return response.status_code, left, time.monotonic() - begun_s


async def ask_all(gateway: Gateway, keys: list[str]) -> list[tuple[int, int, float]]:
    return await asyncio.gather(*(ask(gateway, key) for key in keys))


async def test_no_request_fails_or_waits_long_whatever_redis_does(
    serve: Serve,
    redis: RedisServer,
    tenants: tuple[Tenants, list[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    gateway: Gateway = await serve(config(redis.url), SCRIPT, tenants[0])
    keys = tenants[1]
    assert {found[:2] for found in await ask_all(gateway, keys)} == {(200, 99)}
    redis.pause()
    paused = await ask_all(gateway, keys)
    # Counted by Redis, before it stood still, or from anew; none finds another's count.
    assert {found[:2] for found in paused} <= {(200, 98), (200, 99)}
    # A slow machine takes its time, too; redis-py's own retries would take seven seconds.
    assert max(seconds for _, _, seconds in paused) < 3.0
    redis.resume()
    redis.stop()
    stopped = await ask_all(gateway, keys)
    assert {status for status, _, _ in stopped} == {200}
    redis.start()
    async with asyncio.timeout(10):
        while not any("in their store again" in line for line in caplog.messages):
            await asyncio.gather(*(ask(gateway, key) for key in keys[:2]), asyncio.sleep(0.01))
    assert {found[0] for found in await ask_all(gateway, keys)} == {200}
    assert "redis.sock" not in caplog.text
    metrics = (
        await gateway.client.get("/metrics", headers={"authorization": f"Bearer {keys[0]}"})
    ).text
    assert "fewer_limit_store_errors_total 0.0" not in metrics


async def test_a_slow_redis_is_not_waited_for(
    redis: RedisServer, tenants: tuple[Tenants, list[str]]
) -> None:
    async with (
        slow_road(redis, 5.0) as road,
        running(config(road.url), SCRIPT, tenants[0]) as gateway,
    ):
        found = await ask_all(gateway, tenants[1])
    assert {each[:2] for each in found} == {(200, 99)}
    assert max(seconds for _, _, seconds in found) < 3.0


async def test_closed_refuses_what_is_limited_and_nothing_else(
    serve: Serve, redis: RedisServer, tmp_path: Path
) -> None:
    store = KeyStore(tmp_path / "other.sqlite3")
    limited, free = store.create("a", limits=LIMITS).text, store.create("b").text
    gateway: Gateway = await serve(config(redis.url, when_away="closed"), SCRIPT, Tenants(store))
    redis.stop()
    for _ in range(3):
        response = await gateway.chat(headers={"authorization": f"Bearer {limited}"})
        assert (response.status_code, "retry-after" in response.headers) == (503, True)
    assert (await ask(gateway, free))[0] == 200
    store.close()


async def test_b29_no_count_ever_reaches_the_wrong_caller(
    redis: RedisServer, tenants: tuple[Tenants, list[str]]
) -> None:
    """Over a slow road: clients leave at random moments, as others ask on. Each key has used
    millions of its own."""
    chance = random.Random(29)
    keys = tenants[1]
    await seed(redis, keys)
    async with (
        slow_road(redis, 0.004) as road,
        running(config(road.url, 5000), SCRIPT, tenants[0]) as gateway,
    ):
        for _ in range(25):
            leaving, staying = ([chance.randrange(KEYS) for _ in range(4)] for _ in range(2))
            going = [asyncio.create_task(millions(gateway, keys[place])) for place in leaving]
            for task in going:
                await asyncio.sleep(chance.uniform(0.0, 0.004))
                task.cancel()
            asked = (millions(gateway, keys[place]) for place in staying)
            assert await asyncio.gather(*asked) == staying
            await asyncio.gather(*going, return_exceptions=True)
        assert road.connections <= MAX_CONNECTIONS


async def seed(redis: RedisServer, keys: list[str]) -> None:
    """The n-th key has spent n million tokens."""
    async with aclosing(RedisBudgetStore(RedisClient(redis.url, 5.0))) as store:
        for place, text in enumerate(keys):
            subject = Subject("key", text.split("-")[1], LIMITS)
            need = Need(requests=0, output_tokens=place * MILLION)
            takes = [claim.take for claim in claims_of([subject], need, time.time())]
            assert (await store.reserve(text, takes, 60)).granted
            await store.settle(text, takes)


async def millions(gateway: Gateway, key: str) -> int:
    """That the key has used, as it is told."""
    response = await gateway.chat(headers={"authorization": f"Bearer {key}"})
    left = int(response.headers["x-ratelimit-remaining-tokens"])
    return (LIMITS.budget_tokens or 0) // MILLION - 1 - left // MILLION
