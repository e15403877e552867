"""The cache over a store that fails: requests are served, and the log says so once."""

from __future__ import annotations

import pytest

from engine.protocol.errors import DeadlineExceeded, ServiceError, Unavailable
from engine.protocol.frames import Event, Usage
from gateway.cache import answers as module
from gateway.cache.answers import Answers
from gateway.stores.cache import CacheStore
from gateway.stores.cache_memory import MemoryCacheStore
from gateway.telemetry.metrics import Metrics

KEY = bytes(32)
EVENTS = [Event("", text="Hello", finish="stop"), Event("", usage=Usage(1, 2))]
MAX_BYTES = 1000


class Failing(CacheStore):
    """Fails while `error` is set."""

    def __init__(self) -> None:
        self.error: ServiceError | None = Unavailable("It is away.")
        self.calls = 0
        self._inner = MemoryCacheStore(10_000)

    async def get(self, key: bytes) -> bytes | None:
        self._fail()
        return await self._inner.get(key)

    async def put(self, key: bytes, value: bytes, ttl_s: float) -> None:
        self._fail()
        await self._inner.put(key, value, ttl_s)

    async def aclose(self) -> None:
        return

    def _fail(self) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error


def made(store: CacheStore, now_s: float = 0.0) -> Answers:
    return Answers(store, Metrics(), MAX_BYTES, clock=lambda: now_s)


async def test_an_answer_is_found_until_it_is_too_old_for_who_asks() -> None:
    store = MemoryCacheStore(10_000)
    assert await made(store).keep(KEY, "one", EVENTS, 3600)
    found = await made(store, now_s=60).find(KEY, 60)
    assert found is not None
    assert found.events == EVENTS
    assert await made(store, now_s=61).find(KEY, 60) is None
    assert await made(store).find(b"1" * 32, 60) is None


async def test_a_long_answer_is_not_kept() -> None:
    answers = made(MemoryCacheStore(100_000))
    assert not await answers.keep(KEY, "one", [Event("", text="x" * MAX_BYTES)], 60)
    assert await answers.find(KEY, 60) is None


async def test_a_store_that_fails_is_left_alone_for_a_while(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Failing()
    answers = made(store)
    assert await answers.find(KEY, 60) is None
    assert await answers.find(KEY, 60) is None
    assert not await answers.keep(KEY, "one", EVENTS, 60)
    assert store.calls == 1
    assert "away" in repr(answers)
    monkeypatch.setattr(module, "AGAIN_AFTER_S", 0.0)
    answers._again_s = 0.0
    store.error = DeadlineExceeded("It is slow.")
    assert not await answers.keep(KEY, "one", EVENTS, 60)
    store.error = None
    assert await answers.keep(KEY, "one", EVENTS, 60)
    assert await answers.find(KEY, 60) is not None
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "It is away" in caplog.text
