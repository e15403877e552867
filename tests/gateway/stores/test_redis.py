"""Asking Redis: deadlines, what its failures become, and how much may be asked at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.protocol.errors import DeadlineExceeded, Overloaded, Unavailable
from gateway.stores import redis as module
from gateway.stores.redis import RedisClient
from tests.fakes.redis_server import RedisServer, redis_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as running:
        yield running


async def test_a_paused_redis_costs_the_deadline_and_works_again(server: RedisServer) -> None:
    client = RedisClient(server.url, 0.1)
    server.pause()
    with pytest.raises(DeadlineExceeded, match="Redis did not answer in time"):
        await client.run(lambda: client.commands.get("a"))
    server.resume()
    async with asyncio.timeout(5):
        while True:
            try:
                assert await client.run(lambda: client.commands.get("a")) is None
                break
            except DeadlineExceeded:
                continue
    await client.aclose()


async def test_what_it_says_of_an_address_is_not_passed_on(tmp_path: Path) -> None:
    client = RedisClient(f"unix://secret:password@{tmp_path}/nothing.sock", 5)
    with pytest.raises(Unavailable) as refused:
        await client.run(lambda: client.commands.get("a"))
    assert refused.value.message == "Redis cannot be used: ConnectionError."
    assert refused.value.retry_after_s is not None
    await client.aclose()


async def test_what_redis_refuses_is_unavailable(server: RedisServer) -> None:
    client = RedisClient(server.url, 5)
    with pytest.raises(Unavailable, match="ResponseError"):
        await client.run(lambda: client.commands.incrbyfloat("a", "no number"))  # type: ignore[arg-type]
    await client.aclose()


async def test_what_runs_is_bounded_and_ends_with_the_client(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_RUNNING", 2)
    client = RedisClient(server.url, 30)
    server.pause()
    running = [asyncio.create_task(client.run(lambda: client.commands.get("a"))) for _ in range(2)]
    await asyncio.sleep(0)
    assert repr(client) == "<RedisClient 2 running>"
    with pytest.raises(Overloaded, match="too much to do"):
        await client.run(lambda: client.commands.get("a"))
    async with asyncio.timeout(5):
        await client.aclose()
    assert repr(client) == "<RedisClient 0 running>"
    await asyncio.wait(running)
    assert all(task.cancelled() for task in running)


async def test_a_caller_that_leaves_does_not_cut_its_command(server: RedisServer) -> None:
    client = RedisClient(server.url, 5)
    setting = asyncio.create_task(client.run(lambda: client.commands.set("a", "1")))
    await asyncio.sleep(0)
    setting.cancel()
    await asyncio.wait([setting])
    async with asyncio.timeout(5):
        while await client.run(lambda: client.commands.get("a")) != b"1":
            pass
    await client.aclose()
