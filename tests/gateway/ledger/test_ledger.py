"""The ledger at work: nothing of it is on a request's path, whatever its store does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.protocol.errors import DeadlineExceeded, Unavailable
from gateway.config import LedgerConfig
from gateway.ledger import ledger as module
from gateway.ledger.entry import Entry
from gateway.ledger.ledger import Ledger
from gateway.stores.ledger import Experiment, LedgerStore
from gateway.telemetry.metrics import Metrics
from tests.fakes.clock import FakeClock
from tests.fakes.ledger import an_entry, ruling
from tests.fakes.serving import until
from tests.gateway.ledger.test_experiments import conversations

BUDGET = Experiment("chat", "budget", "e")
NOW_S = 200_000.0


class Store(LedgerStore):
    """In memory. `broken` makes writes fail; a write waits while `free` is not set."""

    def __init__(self) -> None:
        super().__init__(None)
        self.broken = False
        self.pruned = 0
        self.free = threading.Event()
        self.free.set()

    def write(self, entries: Iterable[Entry]) -> None:
        self.free.wait()
        if self.broken:
            raise Unavailable("The store ledger cannot be used: disk is full.")
        super().write(entries)

    def prune(self, before_s: float, max_rows: int) -> None:
        super().prune(before_s, max_rows)
        self.pruned += 1

    def count(self) -> int:
        return sum(row["requests"] for row in self.totals(("tenant",), 0.0))


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def ledger(store: Store, metrics: Metrics) -> Iterator[Ledger]:
    """It does nothing by itself, so that its thread and the test take turns at the store."""
    yield Ledger(store, metrics, clock=FakeClock(NOW_S))
    store.free.set()


async def test_requests_are_written_in_batches(ledger: Ledger, store: Store) -> None:
    for _ in range(3):
        ledger.record(an_entry())
    assert (ledger.pending, store.exists) == (3, False)
    await ledger.flush()
    assert (ledger.pending, store.count()) == (0, 3)


async def test_all_of_it_happens_by_itself(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLUSH_EVERY_S", "LOOK_EVERY_S", "PRUNE_EVERY_S"):
        monkeypatch.setattr(module, name, 0.001)
    ledger = Ledger(store, Metrics(), clock=FakeClock(NOW_S))
    ledger.keep(LedgerConfig(retention_days=1))
    async with ledger.running():
        for entry in [*conversations("control", 100), *conversations("treated", 100)]:
            ledger.record(replace(entry, time_s=NOW_S))
        ledger.record(an_entry(time_s=NOW_S - 90_000))
        await until(lambda: repr(ledger) == "<Ledger 0 pending, 1 experiments>")
        await until(lambda: store.pruned > 0)
        looks = await ledger.ask(LedgerStore.looks)
    assert looks[BUDGET].number == 1


async def test_a_fault_of_ours_is_said_loudly(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "FLUSH_EVERY_S", 0.001)
    monkeypatch.setattr(store, "write", lambda entries: 1 / 0)
    ledger = Ledger(store, Metrics())
    ledger.record(an_entry())
    with pytest.raises(ZeroDivisionError):
        async with ledger.running():
            await until(lambda: bool(caplog.records))
    assert "the ledger is not written any more: ZeroDivisionError" in caplog.text


async def test_the_end_writes_what_is_left(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(LedgerStore(path), Metrics())
    async with ledger.running():
        ledger.record(an_entry())
    again = LedgerStore(path)
    assert [row["requests"] for row in again.totals(("tenant",), 0.0)] == [1]
    again.close()


async def test_without_requests_no_file_is_made(tmp_path: Path) -> None:
    ledger = Ledger(LedgerStore(tmp_path / "ledger"), Metrics())
    async with ledger.running():
        await ledger.flush()
        await ledger.look()
    assert not LedgerStore(tmp_path / "ledger").exists


async def test_a_full_disk_loses_nothing_that_fits_and_is_said_once(
    ledger: Ledger, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.broken = True
    with caplog.at_level(logging.WARNING, "fewer.ledger"):
        for _ in range(3):
            ledger.record(an_entry())
            await ledger.flush()
        assert ledger.pending == 3
        store.broken = False
        await ledger.flush()
    assert store.count() == 3
    bad, good = (record.message for record in caplog.records)
    assert bad.startswith("the ledger is not written; requests are served all the same. ")
    assert bad.endswith("cannot be used: disk is full.")
    assert good == "the ledger is written again"


async def test_what_does_not_fit_is_dropped_and_counted(
    ledger: Ledger, store: Store, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PENDING", 2)
    store.broken = True
    for _ in range(5):
        ledger.record(an_entry())
        await ledger.flush()
    assert ledger.pending == 2
    assert b"fewer_ledger_dropped_total 3.0" in metrics.text()


async def test_a_disk_that_hangs_holds_up_nobody_and_nothing_is_written_twice(
    ledger: Ledger, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DEADLINE_S", 0.01)
    store.free.clear()
    ledger.record(an_entry())
    await ledger.flush()
    ledger.record(an_entry())
    await ledger.flush()
    assert ledger.pending == 2
    with pytest.raises(DeadlineExceeded):
        await ledger.ask(Store.count)  # type: ignore[arg-type]
    monkeypatch.setattr(module, "DEADLINE_S", 5.0)
    store.free.set()
    await ledger.flush()
    assert (ledger.pending, store.count()) == (0, 2)


async def test_asking_sees_what_was_just_recorded(ledger: Ledger) -> None:
    ledger.record(an_entry())
    totals = await ledger.ask(lambda store: store.totals(("tenant",), 0.0))
    assert totals[0]["requests"] == 1


async def test_what_is_too_old_is_pruned(ledger: Ledger, store: Store) -> None:
    ledger.keep(LedgerConfig(retention_days=1, max_rows=10))
    ledger.record(an_entry(time_s=NOW_S - 86_401))
    ledger.record(an_entry(time_s=NOW_S - 86_399))
    await ledger.flush()
    await ledger.prune()
    assert store.count() == 1


async def test_metrics_count_arms_cost_and_estimates(ledger: Ledger, metrics: Metrics) -> None:
    ledger.record(an_entry(dollars=0.25, rulings=(ruling(cut_tokens=7),)))
    ledger.record(an_entry(rulings=(ruling(arm="control", cut_tokens=7),), model="", dollars=0.0))
    told = metrics.text().decode()
    for line in (
        'fewer_holdout_requests_total{arm="treated",policy="budget",route="chat"} 1.0',
        'fewer_holdout_requests_total{arm="control",policy="budget",route="chat"} 1.0',
        'fewer_estimated_saved_prompt_tokens_total{policy="budget",route="chat"} 7.0',
        'fewer_cost_dollars_total{model="m",route="chat"} 0.25',
    ):
        assert line in told


async def test_a_saving_is_found_and_shown(ledger: Ledger, store: Store, metrics: Metrics) -> None:
    store.write(conversations("control", 100) + conversations("treated", 400, 0.5))
    await ledger.look()
    assert not ledger.is_harmful(BUDGET)
    assert store.looks()[BUDGET].number == 1
    label = 'measure="completion_tokens",policy="budget",route="chat"'
    line = next(
        line
        for line in metrics.text().decode().splitlines()
        if line.startswith(f'fewer_saving_ratio{{bound="low",{label}')
    )
    assert 0.2 < float(line.split()[-1]) < 0.5
    await ledger.look()
    assert store.looks()[BUDGET].number == 1


async def test_a_policy_that_does_harm_is_switched_off_and_it_is_said_once(
    ledger: Ledger, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.write(conversations("control", 100) + conversations("treated", 400, 2.0))
    await ledger.look()
    await ledger.look()
    assert ledger.is_harmful(BUDGET)
    assert not ledger.is_harmful(Experiment("chat", "budget", "other settings"))
    assert "conversations cost more" in ledger.harmful[BUDGET]
    (said,) = caplog.records
    assert "the policy budget of the route chat does harm" in said.message


async def test_harm_is_remembered_over_a_restart(store: Store) -> None:
    store.write(conversations("control", 100) + conversations("treated", 400, 2.0))
    for _ in range(2):
        ledger = Ledger(store, Metrics())
        await ledger.look()
        assert ledger.is_harmful(BUDGET)


async def test_without_harm_a_policy_stays(ledger: Ledger, store: Store) -> None:
    store.write(conversations("control", 100) + conversations("treated", 400, 1.0))
    await ledger.look()
    assert ledger.harmful == {}


def test_it_shows_how_it_stands(store: Store) -> None:
    assert repr(Ledger(store, Metrics())) == "<Ledger 0 pending, 0 experiments>"
    assert repr(LedgerStore(Path("x"))) == "<LedgerStore x>"
