"""Several gateways and one Redis: all files come to say the same, whoever was away meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.msgpack import encode
from redis import Redis

from engine.protocol.errors import Unavailable
from gateway.ledger.feedback import Feedback
from gateway.ledger.ledger import Ledger
from gateway.stores import ledger_shared
from gateway.stores.ledger import Experiment, LedgerStore, Look
from gateway.stores.ledger_schema import MEASURED
from gateway.stores.ledger_shared import SharedLedgerStore
from gateway.telemetry.metrics import Metrics
from tests.fakes.ledger import an_entry, ruling
from tests.fakes.redis_server import RedisServer, redis_server
from tests.gateway.ledger.test_experiments import conversations

BUDGET = Experiment("chat", "budget", "e")
Open = Callable[[str], SharedLedgerStore]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
def redis(server: RedisServer) -> RedisServer:
    server.empty()
    return server


@pytest.fixture
def gateway(redis: RedisServer, tmp_path: Path) -> Iterator[Open]:
    """`gateway(name)`: the store of one, with a file of that name."""
    opened: list[SharedLedgerStore] = []

    def store(name: str) -> SharedLedgerStore:
        opened.append(SharedLedgerStore(tmp_path / name, redis.url, deadline_s=0.5))
        return opened[-1]

    yield store
    for each in opened:
        each.close()


def requests(store: LedgerStore) -> int:
    store.catch_up()
    return sum(row["requests"] for row in store.totals(("tenant",), 0.0))


def entries(*names: object, **fields: Any) -> list[Any]:
    return [an_entry(call_id=str(name), **fields) for name in names]


def everything(store: LedgerStore) -> tuple[Any, ...]:
    store.catch_up()
    arms = [sorted(store.conversations(BUDGET, arm)) for arm in ("control", "treated")]
    return store.totals(("route", "model"), 0.0), store.labels(0.0), store.looks(), arms


def test_all_come_to_say_the_same(gateway: Open) -> None:
    stores = [gateway(name) for name in "abc"]
    drawn = random.Random(7)
    for step in range(60):
        store = drawn.choice(stores)
        by = (ruling(arm=drawn.choice(["control", "treated"])),)
        store.write(entries(step, conversation=str(step % 7), rulings=by))
        told = str(drawn.randrange(step + 1))
        assert drawn.choice(stores).add_feedback(Feedback("t", told, told, 0.25, 1.0, "行"))
        if step % 20 == 0:
            drawn.choice(stores).add_look(Look(BUDGET, step // 20, float(step), 1, 1, b"[]"))
    first, *others = map(everything, stores)
    assert first[0][0]["requests"] == 60
    assert all(other == first for other in others)


def test_a_conversation_that_changes_gateways_is_one(gateway: Open) -> None:
    a, b = gateway("a"), gateway("b")
    by = (ruling(arm="control"),)
    for number, store in enumerate((a, b, a)):
        store.write(entries(number, conversation="c", rulings=by))
    b.catch_up()
    (row,) = b.conversations(BUDGET, "control")
    assert row[MEASURED.index("requests")] == 3


def test_the_first_of_two_looks_counts_everywhere(gateway: Open) -> None:
    a, b = gateway("a"), gateway("b")
    first, second = (Look(BUDGET, 1, time_s, 100, 900, b"[]") for time_s in (5.0, 6.0))
    assert a.add_look(first)
    assert not b.add_look(second)
    assert a.looks() == b.looks() == {BUDGET: first}


async def test_harm_that_one_has_found_holds_in_all(gateway: Open) -> None:
    gateway("a").write(conversations("control", 100) + conversations("treated", 400, 2.0))
    for name in "ab":
        ledger = Ledger(gateway(name), Metrics())
        await ledger.look()
        assert ledger.is_harmful(BUDGET)


def test_what_is_written_twice_counts_once(gateway: Open) -> None:
    store = gateway("a")
    for _ in range(2):
        store.write(entries(1, 2))
    assert requests(store) == requests(gateway("b")) == 2


def test_workers_of_one_machine_share_the_file(gateway: Open) -> None:
    one, other = gateway("a"), gateway("a")
    for number, store in enumerate((one, other, one, other)):
        store.write(entries(number))
    assert requests(one) == requests(other) == 4


def test_who_takes_a_step_at_the_same_time_takes_it_once(
    gateway: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = gateway("a"), gateway("a")
    gateway("b").write([an_entry(rulings=(ruling(arm="control"),))])
    after = one._after

    def overtaken(position: bytes) -> Any:
        found = after(position)
        if found:
            other.catch_up()
        return found

    monkeypatch.setattr(one, "_after", overtaken)
    assert requests(one) == 1


def test_a_late_one_catches_up_in_parts(gateway: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_shared, "_ITEMS_AT_ONCE", 2)
    for start in range(0, 90, 30):
        gateway("a").write(entries(*range(start, start + 30)))
    assert requests(gateway("late")) == 90


def test_the_stream_does_not_grow_for_ever(gateway: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_shared, "MOST_ITEMS", 100)
    store = gateway("a")
    for number in range(400):
        store.write(entries(number))
    assert requests(store) == 400
    assert requests(gateway("late")) < 300


async def test_without_redis_nothing_is_lost(redis: RedisServer, gateway: Open) -> None:
    ledger = Ledger(store := gateway("a"), Metrics())
    redis.stop()
    try:
        ledger.record(entries(1)[0])
        await ledger.flush()
        assert ledger.pending == 1
        with pytest.raises(Unavailable, match="Redis cannot be used: ConnectionError"):
            await ledger.ask(LedgerStore.looks)
    finally:
        redis.start()
    await ledger.flush()
    assert (ledger.pending, requests(store)) == (0, 1)


def test_a_redis_that_has_forgotten_all_is_followed_on(redis: RedisServer, gateway: Open) -> None:
    a, b = gateway("a"), gateway("b")
    a.write(entries(1))
    assert requests(b) == 1
    redis.stop()
    redis.start()
    b.write(entries(2))
    assert (requests(a), requests(b)) == (2, 2)


def test_its_address_is_never_shown(tmp_path: Path) -> None:
    store = SharedLedgerStore(tmp_path / "a", "redis://:secret@127.0.0.1:1/0", deadline_s=0.1)
    with pytest.raises(Unavailable) as caught:
        store.write(entries(1))
    assert "secret" not in caught.value.message + repr(store)
    store.close()


@pytest.mark.parametrize("data", [b"", b"\xc1", encode({"entries": [{"mode": "new"}]})])
def test_what_another_version_wrote_is_passed_over(
    redis: RedisServer, gateway: Open, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    client: Redis = Redis.from_url(redis.url)
    client.xadd(ledger_shared.STREAM, {b"item": data})
    client.close()
    gateway("a").write(entries(1))
    assert requests(gateway("b")) == 1
    assert "is passed over" in caplog.text
