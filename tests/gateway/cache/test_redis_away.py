"""Redis stopped, paused, slow, and started again under load. Show 7 of the issue, and B29."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.backends.base import Call, Stream
from gateway.backends.scripted import ScriptedBackend
from gateway.cache import answers
from gateway.config import CacheConfig, Config, Secret
from gateway.stores.redis import MAX_CONNECTIONS
from tests.fakes.redis_server import RedisServer, redis_server, slow_road
from tests.fakes.serving import Gateway, Serve, running, scripted_config

DEADLINE_MS = 100
PROMPTS = 50


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@pytest.fixture(autouse=True)
def at_once_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request asks the store, also right after a failure."""
    monkeypatch.setattr(answers, "AGAIN_AFTER_S", 0.0)


class Echo(ScriptedBackend):
    """Answers with the question."""

    def __init__(self) -> None:
        super().__init__("one", {"steps": []})

    async def generate(self, call: Call) -> Stream:
        text = str(call.request.messages[-1]["content"])
        one = ScriptedBackend("one", {"steps": [{"text": f"answer to {text}"}]})
        self.calls.append(call)
        return await one.generate(call)


def config(url: str, deadline_ms: int = DEADLINE_MS) -> Config:
    cache = CacheConfig(store=Secret(url), deadline_ms=deadline_ms)
    return replace(scripted_config(), cache=cache)


async def ask(gateway: Gateway, name: int) -> tuple[str, float]:
    """Where the answer came from, and the seconds it took. It must be the right one."""
    begun_s = time.monotonic()
    messages = [{"role": "user", "content": f"P{name}"}]
    response = await gateway.chat(messages=messages, temperature=0)
    assert response.status_code == 200
    assert response.json()["choices"][0]["message"]["content"] == f"answer to P{name}"
    return str(response.headers["x-fewer-cache"]), time.monotonic() - begun_s


async def ask_all(gateway: Gateway, names: range) -> list[tuple[str, float]]:
    return await asyncio.gather(*(ask(gateway, name) for name in names))


async def test_gateways_share_what_one_has_kept(serve: Serve, redis: RedisServer) -> None:
    one: Gateway = await serve(config(redis.url, 5000), {"one": Echo()})
    other: Gateway = await serve(config(redis.url, 5000), {"one": Echo()})
    assert {found for found, _ in await ask_all(one, range(20))} == {"miss"}
    await until_kept(one, 20)
    assert {found for found, _ in await ask_all(other, range(20))} == {"hit"}


async def until_kept(gateway: Gateway, count: int) -> None:
    line = f'fewer_cache_stored_total{{route="chat"}} {count}.0'
    while line not in (await gateway.client.get("/metrics")).text:
        pass


async def test_no_request_fails_or_waits_long_whatever_redis_does(
    serve: Serve, redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    gateway: Gateway = await serve(config(redis.url), {"one": Echo()})
    await ask_all(gateway, range(10))
    redis.pause()
    paused = await ask_all(gateway, range(10))
    assert {found for found, _ in paused} == {"miss"}
    # A slow machine takes its time, too; redis-py's own retries would take seven seconds.
    assert max(seconds for _, seconds in paused) < 3.0
    redis.resume()
    redis.stop()
    stopped = await ask_all(gateway, range(10))
    # Some find the one before still being kept in vain.
    assert {found for found, _ in stopped} <= {"miss", "joined"}
    redis.start()
    found = ""
    async with asyncio.timeout(10):
        while found != "hit":
            found, _ = await ask(gateway, 3)
    assert sum("answers are not cached" in line for line in caplog.messages) in (1, 2)
    assert any("answers are cached again" in line for line in caplog.messages)
    assert "redis.sock" not in caplog.text


async def test_a_redis_that_comes_later_is_used_from_then_on(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """R39: the gateway starts without it, and says so."""
    redis.stop()
    async with running(config(redis.url, 5000), {"one": Echo()}) as gateway:
        assert (await gateway.client.get("/health/ready")).status_code == 200
        assert (await ask(gateway, 1))[0] == "miss"
        assert any("answers are not cached" in line for line in caplog.messages)
        redis.start()
        found = ""
        async with asyncio.timeout(10):
            while found != "hit":
                found, _ = await ask(gateway, 1)


async def test_a_slow_redis_is_not_waited_for(redis: RedisServer) -> None:
    async with (
        slow_road(redis, 5.0) as road,
        running(config(road.url), {"one": Echo()}) as gateway,
    ):
        asked = await ask_all(gateway, range(20))
    assert {found for found, _ in asked} == {"miss"}
    assert max(seconds for _, seconds in asked) < 3.0


async def test_b29_no_value_ever_reaches_the_wrong_caller(redis: RedisServer) -> None:
    """Over a slow road: 200 clients leave at random moments, as many others ask on."""
    chance = random.Random(29)
    found: list[tuple[str, float]] = []
    async with (
        slow_road(redis, 0.004) as road,
        running(config(road.url, 5000), {"one": Echo()}) as gateway,
    ):
        await ask_all(gateway, range(PROMPTS))
        await until_kept(gateway, PROMPTS)
        for _ in range(50):
            leaving, staying = (
                [asyncio.create_task(ask(gateway, chance.randrange(PROMPTS))) for _ in range(4)]
                for _ in range(2)
            )
            for task in leaving:
                await asyncio.sleep(chance.uniform(0.0, 0.004))
                task.cancel()
            found += await asyncio.gather(*staying)
            await asyncio.gather(*leaving, return_exceptions=True)
        assert road.connections <= MAX_CONNECTIONS
    assert [source for source, _ in found] == ["hit"] * 200
