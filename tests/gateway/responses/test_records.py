"""What is kept of responses: found by its tenant alone, and never in the way of an answer."""

from __future__ import annotations

import pytest

from engine.protocol.errors import NotFound, Unavailable
from gateway.responses.items import items_of
from gateway.responses.records import Record, Records
from gateway.stores.cache import CacheStore
from gateway.stores.cache_memory import MemoryCacheStore
from tests.fakes.clock import FakeClock

RECORD = Record({"id": "resp_1", "output": [{"type": "message"}]}, [items_of("你好", "1")])


class Away(CacheStore):
    async def get(self, key: bytes) -> bytes | None:
        raise Unavailable("Away.")

    async def put(self, key: bytes, value: bytes, ttl_s: float) -> None:
        raise Unavailable("Away.")

    async def aclose(self) -> None:
        pass


async def test_a_record_is_found_by_its_tenant_alone() -> None:
    records = Records(MemoryCacheStore(10_000), 60)
    assert await records.keep(RECORD, "salt")
    assert await records.find("resp_1", "salt") == RECORD
    assert RECORD.continued == [*RECORD.turns, [{"type": "message"}]]
    messages = []
    for id, salt in (("resp_1", "other"), ("resp_2", "salt")):
        with pytest.raises(NotFound) as caught:
            await records.find(id, salt)
        messages.append(caught.value.message.replace(id, "ID"))
    assert len(set(messages)) == 1
    await records.aclose()


async def test_a_record_is_gone_after_its_time_or_when_it_is_deleted() -> None:
    clock = FakeClock()
    records = Records(MemoryCacheStore(10_000, clock=clock), 60)
    await records.keep(RECORD, "s")
    clock.now_s += 61
    with pytest.raises(NotFound):
        await records.find("resp_1", "s")
    await records.keep(RECORD, "s")
    await records.forget("resp_1", "s")
    for act in (records.find, records.forget):
        with pytest.raises(NotFound):
            await act("resp_1", "s")


async def test_room_is_made_for_later_ones() -> None:
    records = Records(MemoryCacheStore(2_000), 60)
    for number in range(50):
        assert await records.keep(Record({"id": f"resp_{number}", "output": []}, []), "s")
    assert (await records.find("resp_49", "s")).response["id"] == "resp_49"
    with pytest.raises(NotFound):
        await records.find("resp_0", "s")


async def test_a_store_that_is_away_is_told_of_and_keeps_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    records = Records(Away(), 60)
    assert not await records.keep(RECORD, "s")
    assert "a response was not kept" in caplog.text
    with pytest.raises(Unavailable):
        await records.find("resp_1", "s")


async def test_without_a_store_nothing_is_kept() -> None:
    records = Records(None, 60)
    assert not await records.keep(RECORD, "s")
    with pytest.raises(NotFound):
        await records.find("resp_1", "s")
    await records.aclose()


async def test_what_is_no_record_is_as_nothing() -> None:
    store = MemoryCacheStore(10_000)
    records = Records(store, 60)
    await records.keep(RECORD, "s")
    [key] = store._entries
    await store.put(key, b"{}", 60)
    with pytest.raises(NotFound):
        await records.find("resp_1", "s")
