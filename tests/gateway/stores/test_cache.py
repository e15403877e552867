"""The contract of the stores of kept answers: every test runs over all three."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.stores.cache import KEY_BYTES, CacheStore
from gateway.stores.cache_memory import ENTRY_BYTES, MemoryCacheStore
from gateway.stores.cache_redis import RedisCacheStore
from gateway.stores.cache_sqlite import SqliteCacheStore
from gateway.stores.redis import RedisClient
from tests.fakes.redis_server import RedisServer, redis_server

DEADLINE_S = 5.0
MAX_BYTES = 1024 * 1024


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "redis"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, redis: RedisServer
) -> AsyncIterator[CacheStore]:
    kept: CacheStore
    if request.param == "memory":
        kept = MemoryCacheStore(MAX_BYTES)
    elif request.param == "sqlite":
        kept = SqliteCacheStore(tmp_path / "cache.sqlite3", MAX_BYTES, deadline_s=DEADLINE_S)
    else:
        kept = RedisCacheStore(RedisClient(redis.url, DEADLINE_S), b"test:")
    yield kept
    await kept.aclose()
    await kept.aclose()


def key(name: object) -> bytes:
    return repr(name).encode().rjust(KEY_BYTES, b"\0")


async def test_what_was_put_is_got_byte_for_byte(store: CacheStore) -> None:
    values = [b"", b"\0\xff\r\n", bytes(range(256)) * 100]
    for number, value in enumerate(values):
        await store.put(key(number), value, 60)
    assert [await store.get(key(number)) for number in range(len(values))] == values
    assert await store.get(key("never put")) is None


async def test_the_latest_counts(store: CacheStore) -> None:
    await store.put(key("a"), b"first", 60)
    await store.put(key("a"), b"second", 60)
    assert await store.get(key("a")) == b"second"


async def test_what_has_expired_is_gone(store: CacheStore) -> None:
    await store.put(key("short"), b"value", 0.001)
    await store.put(key("long"), b"value", 60)
    async with asyncio.timeout(DEADLINE_S):
        while await store.get(key("short")) is not None:  # noqa: ASYNC110 - has no event
            await asyncio.sleep(0.001)
    assert await store.get(key("long")) == b"value"


async def test_a_new_value_lives_its_own_time(store: CacheStore) -> None:
    await store.put(key("renewed"), b"old", 0.02)
    await store.put(key("renewed"), b"new", 60)
    await asyncio.sleep(0.03)
    assert await store.get(key("renewed")) == b"new"


async def test_a_hundred_at_once(store: CacheStore) -> None:
    await asyncio.gather(*(store.put(key(n), key(n) * 10, 60) for n in range(100)))
    found = await asyncio.gather(*(store.get(key(n)) for n in range(100)))
    assert found == [key(n) * 10 for n in range(100)]


async def test_cancelled_callers_harm_nobody(store: CacheStore) -> None:
    """Whoever is left gets his own value, also from a connection that somebody gave up."""
    chance = random.Random(7)
    for n in range(40):
        await store.put(key(("kept", n)), key(n), 60)
    for _ in range(40):
        leaving = [
            asyncio.create_task(store.get(key(("kept", chance.randrange(40))))) for _ in range(4)
        ]
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
        for task in leaving:
            task.cancel()
        staying = [chance.randrange(40) for _ in range(4)]
        found = await asyncio.gather(*(store.get(key(("kept", n))) for n in staying))
        assert found == [key(n) for n in staying]
        await asyncio.gather(*leaving, return_exceptions=True)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_room_is_bounded_and_the_newest_stays(kind: str, tmp_path: Path) -> None:
    store: CacheStore = MemoryCacheStore(10_000)
    if kind == "sqlite":
        store = SqliteCacheStore(tmp_path / "db", 10_000, deadline_s=DEADLINE_S)
    for n in range(50):
        await store.put(key(n), bytes(1000), 60)
        assert 0 < (store.size_bytes or 0) <= 10_000
    assert await store.get(key(49)) == bytes(1000)
    assert await store.get(key(0)) is None
    await store.put(key("too large"), bytes(10_000), 60)
    assert await store.get(key("too large")) is None
    assert await store.get(key(49)) == bytes(1000)
    await store.aclose()


async def test_memory_forgets_what_was_not_used() -> None:
    store = MemoryCacheStore(2 * (ENTRY_BYTES + 1))
    await store.put(key("a"), b"a", 60)
    await store.put(key("b"), b"b", 60)
    await store.get(key("a"))
    await store.put(key("c"), b"c", 60)
    assert [await store.get(key(name)) for name in "abc"] == [b"a", None, b"c"]
    assert repr(store) == f"<MemoryCacheStore 2 answers, {2 * (ENTRY_BYTES + 1)} of 602 bytes>"


async def test_memory_counts_what_has_expired_as_room() -> None:
    now_s = 0.0
    store = MemoryCacheStore(MAX_BYTES, clock=lambda: now_s)
    await store.put(key("a"), b"a", 1)
    now_s = 1.0
    assert await store.get(key("a")) is None
    assert store.size_bytes == 0
