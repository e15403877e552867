"""Where records are kept. What must never happen: one that crosses tenants, or a request that fails
or waits for its store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine.protocol.errors import ServiceError, Unavailable
from gateway.config import Config, RecordsConfig, Secret
from gateway.history import records as module
from gateway.history.records import Records
from gateway.stores.cache import CacheStore
from gateway.stores.cache_memory import MemoryCacheStore
from gateway.stores.cache_redis import RedisCacheStore
from gateway.stores.cache_sqlite import SqliteCacheStore
from gateway.telemetry.metrics import Metrics
from tests.fakes.redis_server import redis_server

KEY, OTHER, THIRD = bytes(32), b"1" * 32, b"2" * 32


class Failing(CacheStore):
    """Fails while `error` is set, and never answers while `hangs` is."""

    def __init__(self) -> None:
        self.error: ServiceError | None = None
        self.hangs = False
        self.calls = 0
        self._inner = MemoryCacheStore(10_000)

    async def get(self, key: bytes) -> bytes | None:
        await self._fail()
        return await self._inner.get(key)

    async def put(self, key: bytes, value: bytes, ttl_s: float) -> None:
        await self._fail()
        await self._inner.put(key, value, ttl_s)

    async def aclose(self) -> None:
        return

    async def _fail(self) -> None:
        self.calls += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error


def over(store: CacheStore, metrics: Metrics | None = None) -> Records:
    return Records(store, metrics or Metrics(), ttl_s=60, deadline_s=0.05)


async def test_what_was_kept_is_known_to_the_same_tenant_on_the_same_route() -> None:
    records = over(MemoryCacheStore(10_000))
    await records.keep(KEY, "salt", "chat", b"record")
    assert await records.known([OTHER, KEY], "salt", "chat") == {KEY: b"record"}
    assert await records.known([KEY], "salt of another", "chat") == {}
    assert await records.known([KEY], "salt", "other route") == {}


async def test_keys_in_the_store_say_nothing_of_the_conversation() -> None:
    store = Failing()
    records = over(store)
    await records.keep(KEY, "salt", "chat", b"record")
    assert await store._inner.get(KEY) is None


async def test_no_more_is_looked_for_than_a_policy_needs() -> None:
    store = Failing()
    first = over(store)
    for key in (KEY, OTHER, THIRD):
        await first.keep(key, "s", "r", key)
    store.calls = 0
    assert set(await over(store).known([KEY, OTHER, THIRD], "s", "r")) == {KEY, OTHER}
    assert store.calls == 2


async def test_what_was_read_lately_outlasts_a_store_that_fails() -> None:
    store = Failing()
    await over(store).keep(KEY, "s", "r", b"record")
    records = over(store)
    assert await records.known([KEY], "s", "r") == {KEY: b"record"}
    store.error = Unavailable("It is away.")
    assert await records.known([KEY], "s", "r") == {KEY: b"record"}
    assert store.calls == 2


async def test_a_store_that_is_away_is_left_alone_and_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, metrics = Failing(), Metrics()
    store.error = Unavailable("It is away.")
    records = over(store, metrics)
    for _ in range(3):
        assert await records.known([OTHER, THIRD], "s", "r") == {}
        await records.keep(KEY, "s", "r", b"record")
    assert store.calls == 1
    # This process knows what it has kept itself.
    assert await records.known([KEY], "s", "r") == {KEY: b"record"}
    assert repr(records).startswith("<Records away, ")
    assert b"fewer_record_store_errors_total 1.0" in metrics.text()
    monkeypatch.setattr(module, "AGAIN_AFTER_S", 0.0)
    again = over(store)
    await again.keep(OTHER, "s", "r", b"record")
    await again.keep(OTHER, "s", "r", b"record")
    assert store.calls == 3
    store.error = None
    await again.keep(OTHER, "s", "r", b"record")
    assert await over(store).known([OTHER], "s", "r") == {OTHER: b"record"}
    told = [record.message for record in caplog.records if record.name == "fewer.history"]
    assert [message.startswith("records of conversations are not kept") for message in told] == [
        True,
        True,
        False,
    ]
    assert told[-1] == "records of conversations are kept again"


async def test_nobody_waits_beyond_the_deadline() -> None:
    store = Failing()
    store.hangs = True
    records = over(store)
    async with asyncio.timeout(5):
        assert await records.known([KEY, OTHER], "s", "r") == {}
        assert await records.known([KEY, OTHER], "s", "r") == {}
    assert store.calls == 1


@pytest.mark.parametrize(
    ("store", "kind"),
    [
        ("memory", MemoryCacheStore),
        ("sqlite", SqliteCacheStore),
        ("redis://127.0.0.1:1/0", RedisCacheStore),
    ],
)
async def test_the_store_is_the_one_that_is_set(
    store: str, kind: type[CacheStore], tmp_path: Path
) -> None:
    config = Config(store=tmp_path / "fewer.sqlite3", records=RecordsConfig(Secret(store)))
    records = Records.of(config, Metrics())
    assert isinstance(records._store, kind)
    await records.aclose()


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_another_process_finds_what_was_kept(kind: str, tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        store = server.url if kind == "redis" else kind
        settings = RecordsConfig(Secret(store), deadline_ms=5000)
        config = Config(store=tmp_path / "fewer.sqlite3", records=settings)
        first, second = Records.of(config, Metrics()), Records.of(config, Metrics())
        await first.keep(KEY, "salt", "chat", b"record")
        assert await second.known([KEY], "salt", "chat") == {KEY: b"record"}
        assert await second.known([KEY], "other", "chat") == {}
        await first.aclose()
        await second.aclose()
