"""What holds of limits while their store is away, and when it is back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from engine.protocol.errors import DeadlineExceeded, ServiceError, Unavailable
from gateway.budgets import counting
from gateway.budgets.counting import Counting
from gateway.stores.budget import BudgetStore, Reply, State, Take
from gateway.stores.budget_memory import MemoryBudgetStore
from gateway.telemetry.metrics import Metrics
from tests.fakes.serving import until

BUDGET = Take("budget", 0, 100, windowed=False)
MINUTE = Take("minute", 0, 100, windowed=True)


class Flaky(BudgetStore):
    """A store that can be away, and that can do what it is asked and not say so.

    asked: calls so far; error: what it raises; done_all_the_same: after doing it
    """

    def __init__(self) -> None:
        self.inner = MemoryBudgetStore()
        self.error: ServiceError | None = None
        self.done_all_the_same = False
        self.asked = 0

    async def reserve(self, lease: str, takes: Sequence[Take], lease_s: float) -> Reply:
        if self.error is not None and self.done_all_the_same:
            await self.inner.reserve(lease, takes, lease_s)
        self._ask()
        return await self.inner.reserve(lease, takes, lease_s)

    async def settle(self, lease: str, takes: Sequence[Take]) -> None:
        if self.error is not None and self.done_all_the_same:
            await self.inner.settle(lease, takes)
        self._ask()
        await self.inner.settle(lease, takes)

    async def look(self, takes: Sequence[Take]) -> tuple[State, ...]:
        self._ask()
        return await self.inner.look(takes)

    async def aclose(self) -> None:
        await self.inner.aclose()

    async def used(self, take: Take = BUDGET) -> int:
        (state,) = await self.inner.look([take])
        return state.used

    def _ask(self) -> None:
        self.asked += 1
        if self.error is not None:
            raise self.error


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "AGAIN_AFTER_S", 0.01)


@pytest.fixture
def store() -> Flaky:
    return Flaky()


@pytest.fixture
async def limits(store: Flaky) -> AsyncIterator[Counting]:
    made = Counting(lambda: store, Metrics())
    yield made
    await made.aclose()


def of(take: Take, amount: int) -> Take:
    return Take(take.counter, amount, take.limit, take.windowed)


async def back(store: Flaky, limits: Counting) -> None:
    store.error = None
    await until(lambda: repr(limits).startswith("<Counting in use, 0 unsettled"))


async def test_alone_it_counts_on_from_where_it_was(store: Flaky, limits: Counting) -> None:
    assert (await limits.reserve("a", [of(BUDGET, 60), of(MINUTE, 60)], 60)).granted
    store.error = Unavailable("gone")
    granted = await limits.reserve("b", [of(BUDGET, 30), of(MINUTE, 30)], 60)
    assert granted.granted
    assert [state.used for state in granted.states] == [90, 90]
    refused = await limits.reserve("c", [of(BUDGET, 11)], 60)
    assert not refused.granted
    assert refused.states[0].used == 90


async def test_an_absence_begins_no_new_minute(store: Flaky, limits: Counting) -> None:
    """Who drives the store away, by asking too much of it at once, gains nothing."""
    assert (await limits.reserve("spent", [of(MINUTE, 60)], 60)).granted
    await limits.settle("spent", [of(MINUTE, 50)])
    for number in range(2):
        store.error = Unavailable("too much to do")
        reply = await limits.reserve(f"more {number}", [of(MINUTE, 51)], 60)
        assert not reply.granted
        assert (reply.states[0].used, reply.states[0].wait_s > 0) == (50, True)
        await back(store, limits)
    store.error = Unavailable("too much to do")
    # What was let through alone counts the next time, too, with what it spent in the end.
    assert (await limits.reserve("alone", [of(MINUTE, 40)], 60)).granted
    await back(store, limits)
    store.error = Unavailable("too much to do")
    assert not (await limits.reserve("too much", [of(MINUTE, 11)], 60)).granted
    await limits.settle("alone", [of(MINUTE, 10)])
    assert (await limits.reserve("fits", [of(MINUTE, 40)], 60)).granted


async def test_what_was_spent_meanwhile_is_booked_once(store: Flaky, limits: Counting) -> None:
    assert (await limits.reserve("before", [of(BUDGET, 20)], 60)).granted
    store.error = Unavailable("gone")
    assert (await limits.reserve("alone", [of(BUDGET, 30)], 60)).granted
    assert (await limits.reserve("longer", [of(BUDGET, 30)], 60)).granted
    await limits.settle("before", [of(BUDGET, 15)])
    await limits.settle("alone", [of(BUDGET, 10)])
    await back(store, limits)
    assert await store.used() == 25
    # A lease of that time may end when all is well again.
    await limits.settle("longer", [of(BUDGET, 7)])
    async with asyncio.timeout(5):
        while await store.used() != 32:  # noqa: ASYNC110 - has no event
            await asyncio.sleep(0.005)
    await back(store, limits)
    assert await store.used() == 32


async def test_a_second_time_alone_counts_nothing_twice(store: Flaky, limits: Counting) -> None:
    for number, state in enumerate((40, 80)):
        store.error = Unavailable("gone")
        assert (await limits.reserve(f"fails {number}", [of(BUDGET, 0)], 60)).granted
        reply = await limits.reserve(f"alone {number}", [of(BUDGET, 40)], 60)
        assert [each.used for each in reply.states] == [state]
        await limits.settle(f"fails {number}", [of(BUDGET, 0)])
        await limits.settle(f"alone {number}", [of(BUDGET, 40)])
        await back(store, limits)
        assert await store.used() == state
    assert not (await limits.reserve("too much", [of(BUDGET, 30)], 60)).granted


async def test_what_was_done_though_nobody_said_so_is_charged_once(
    store: Flaky, limits: Counting
) -> None:
    store.error, store.done_all_the_same = DeadlineExceeded("late"), True
    assert (await limits.reserve("a", [of(BUDGET, 30), of(MINUTE, 30)], 60)).granted
    assert await store.used() == 30
    await limits.settle("a", [of(BUDGET, 12), of(MINUTE, 12)])
    await back(store, limits)
    assert (await store.used(), await store.used(MINUTE)) == (12, 0)
    assert (await limits.reserve("b", [of(BUDGET, 30)], 60)).granted
    store.error = DeadlineExceeded("late")
    await limits.settle("b", [of(BUDGET, 5)])
    await back(store, limits)
    assert await store.used() == 17


async def test_closed_lets_nothing_through(store: Flaky, limits: Counting) -> None:
    limits.when_away = "closed"
    store.error = Unavailable("gone")
    for lease in "ab":
        with pytest.raises(Unavailable, match="store of limits") as refused:
            await limits.reserve(lease, [of(BUDGET, 1)], 60)
        assert refused.value.retry_after_s == 0.01
    await back(store, limits)
    assert (await limits.reserve("c", [of(BUDGET, 1)], 60)).granted


async def test_open_lets_all_through_and_books_it(store: Flaky, limits: Counting) -> None:
    limits.when_away = "open"
    store.error = Unavailable("gone")
    for lease in "abc":
        assert await limits.reserve(lease, [of(BUDGET, 90)], 60) == Reply(True, ())
        await limits.settle(lease, [of(BUDGET, 50)])
    await back(store, limits)
    assert await store.used() == 150
    assert not (await limits.reserve("d", [of(BUDGET, 1)], 60)).granted


async def test_nobody_waits_for_a_store_that_has_just_failed(
    store: Flaky,
    limits: Counting,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(counting, "AGAIN_AFTER_S", 60.0)
    store.error = Unavailable("gone")
    for lease in range(20):
        await limits.reserve(str(lease), [of(MINUTE, 1)], 60)
        await limits.settle(str(lease), [of(MINUTE, 1)])
    assert store.asked == 1
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "counted by each process alone" in caplog.text


async def test_a_failure_while_catching_up_loses_nothing(store: Flaky, limits: Counting) -> None:
    store.error = Unavailable("gone")
    for lease in "abc":
        await limits.reserve(lease, [of(BUDGET, 10)], 60)
        await limits.settle(lease, [of(BUDGET, 4)])
    asked = store.asked
    await until(lambda: store.asked > asked + 3)
    await back(store, limits)
    assert await store.used() == 12


async def test_what_waits_is_bounded(
    store: Flaky, limits: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "MAX_UNSETTLED", 3)
    monkeypatch.setattr(counting, "MAX_KNOWN", 3)
    for number in range(10):
        take = Take(f"budget {number}", 10, 100, windowed=False)
        assert (await limits.reserve(str(number), [take], 60)).granted
    store.error = Unavailable("gone")
    for number in range(10):
        await limits.settle(str(number), [Take(f"budget {number}", 1, 100, windowed=False)])
    assert "3 unsettled" in repr(limits)
    await back(store, limits)


async def test_what_cannot_be_booked_is_booked_later(
    store: Flaky, limits: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store answers, and fails again as it is told what was spent."""
    store.error = Unavailable("gone")
    await limits.reserve("a", [of(BUDGET, 10)], 60)
    failures = iter([DeadlineExceeded("late")])
    whole = store.reserve

    async def failing(lease: str, takes: Sequence[Take], lease_s: float) -> Reply:
        for error in failures:
            raise error
        return await whole(lease, takes, lease_s)

    monkeypatch.setattr(store, "reserve", failing)
    await limits.settle("a", [of(BUDGET, 4)])
    await back(store, limits)
    assert await store.used() == 4


async def test_a_fault_of_ours_is_told(
    store: Flaky,
    limits: Counting,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store.error = Unavailable("gone")

    async def broken(takes: Sequence[Take]) -> tuple[State, ...]:
        raise ZeroDivisionError

    monkeypatch.setattr(store, "look", broken)
    await limits.reserve("a", [of(BUDGET, 10)], 60)
    await until(lambda: "not asked any more" in caplog.text)
