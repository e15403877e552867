"""The contract of the stores of budgets: every test runs over all three."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.stores.budget import (
    GRACE_S,
    MAX_AMOUNT,
    NEVER_S,
    SLOT_COUNTS_S,
    BudgetStore,
    State,
    Take,
)
from gateway.stores.budget_memory import MemoryBudgetStore
from gateway.stores.budget_redis import RedisBudgetStore
from gateway.stores.budget_sqlite import SqliteBudgetStore
from gateway.stores.redis import RedisClient
from tests.fakes.budget_model import BudgetModel
from tests.fakes.clock import FakeClock
from tests.fakes.redis_server import RedisServer, redis_server

DEADLINE_S = 5.0
KINDS = ["memory", "sqlite", "redis"]
NEVER = 3600.0 * 24
"""A lease that no test outlives."""

_names = count()


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def clock() -> FakeClock:
    """Ahead of Redis's own, so that nothing expires there before it does here."""
    return FakeClock(float(int(time.time()) + 1_000_000))


def opened(kind: str, folder: Path, redis: RedisServer, clock: FakeClock) -> BudgetStore:
    if kind == "memory":
        return MemoryBudgetStore(clock=clock)
    if kind == "sqlite":
        return SqliteBudgetStore(folder / "budgets.sqlite3", deadline_s=DEADLINE_S, clock=clock)
    return RedisBudgetStore(RedisClient(redis.url, DEADLINE_S), clock=clock)


@pytest.fixture(params=KINDS)
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, redis: RedisServer, clock: FakeClock
) -> AsyncIterator[BudgetStore]:
    made = opened(request.param, tmp_path, redis, clock)
    yield made
    await made.aclose()
    await made.aclose()


def name() -> str:
    """Never used before."""
    return f"租户:{next(_names)}"


def minute(limit: int, amount: int = 0) -> Take:
    return Take(name(), amount, limit, True)


def period(limit: int, amount: int = 0, until_s: float = NEVER_S) -> Take:
    return Take(name(), amount, limit, False, until_s)


def asking(take: Take, amount: int) -> Take:
    return replace(take, amount=amount)


async def used(store: BudgetStore, take: Take) -> int:
    (state,) = await store.look([asking(take, 0)])
    return state.used


async def took(store: BudgetStore, *takes: Take, lease_s: float = NEVER) -> str | None:
    """The lease, if it was granted."""
    lease = name()
    reply = await store.reserve(lease, takes, lease_s)
    assert len(reply.states) == len(takes)
    return lease if reply.granted else None


@pytest.mark.parametrize("make", [minute, period])
async def test_a_limit_is_reached_and_not_passed(
    store: BudgetStore, make: Callable[[int], Take]
) -> None:
    take = make(100)
    assert await took(store, asking(take, 60))
    assert not await took(store, asking(take, 41))
    assert await took(store, asking(take, 40))
    assert not await took(store, asking(take, 1))
    assert await took(store, asking(take, 0))
    assert await used(store, take) == 100


async def test_nothing_is_taken_when_one_refuses(store: BudgetStore) -> None:
    one, other, third = minute(10), period(5), minute(10)
    reply = await store.reserve(name(), [asking(one, 6), asking(other, 6), asking(third, 1)], NEVER)
    assert not reply.granted
    assert [state.wait_s for state in reply.states] == [0, NEVER_S, 0]
    assert [await used(store, take) for take in (one, other, third)] == [0, 0, 0]


async def test_settling_gives_the_difference_back(store: BudgetStore) -> None:
    short, long = minute(100), period(100)
    lease = await took(store, asking(short, 90), asking(long, 90))
    assert lease
    await store.settle(lease, [asking(short, 20), asking(long, 30)])
    assert (await used(store, short), await used(store, long)) == (20, 30)
    assert await took(store, asking(short, 80), asking(long, 70))


async def test_settling_twice_charges_once(store: BudgetStore) -> None:
    short, long = minute(100), period(100)
    lease = await took(store, asking(short, 50), asking(long, 50))
    assert lease
    for _ in range(3):
        await store.settle(lease, [asking(short, 10), asking(long, 10)])
    await store.settle(name(), [asking(short, 10), asking(long, 10)])
    assert (await used(store, short), await used(store, long)) == (10, 10)


async def test_more_than_was_reserved_may_be_spent(store: BudgetStore) -> None:
    short, long = minute(100), period(100)
    lease = await took(store, asking(short, 50), asking(long, 50))
    assert lease
    await store.settle(lease, [asking(short, 130), asking(long, 130)])
    assert (await used(store, short), await used(store, long)) == (130, 130)
    assert not await took(store, asking(short, 1))


async def test_a_minute_ends(store: BudgetStore, clock: FakeClock) -> None:
    take = minute(100)
    clock.now_s += 0.5
    assert await took(store, asking(take, 70))
    clock.now_s += 10
    assert await took(store, asking(take, 30))
    reply = await store.reserve(name(), [asking(take, 50)], NEVER)
    (state,) = reply.states
    assert state.used == 100
    assert state.wait_s == pytest.approx(SLOT_COUNTS_S - 10.5, abs=1e-3)
    assert state.reset_s == pytest.approx(SLOT_COUNTS_S - 0.5, abs=1e-3)
    clock.now_s += state.wait_s - 0.01
    assert not await took(store, asking(take, 50))
    clock.now_s += 0.02
    assert await took(store, asking(take, 50))
    assert await used(store, take) == 80
    clock.now_s += SLOT_COUNTS_S
    assert await store.look([take]) == (State(0, 0, 0),)


async def test_a_clock_that_is_set_back_blocks_nobody_for_long(
    store: BudgetStore, clock: FakeClock
) -> None:
    take = minute(100)
    late = await took(store, asking(take, 60))
    clock.now_s -= 30.0
    assert await took(store, asking(take, 40))
    # What it was a moment ago still counts, and in its order.
    (state,) = await store.look([asking(take, 41)])
    assert (state.used, state.reset_s, state.wait_s) == (100, 91.0, 91.0)
    (state,) = await store.look([asking(take, 40)])
    assert state.wait_s == 61.0
    clock.now_s -= 3600.0
    assert await used(store, take) == 0
    assert late is not None
    await store.settle(late, [asking(take, 70)])
    assert await took(store, asking(take, 100))
    clock.now_s += 3630.0
    assert await used(store, take) == 0


async def test_what_is_settled_late_belongs_to_its_own_minute(
    store: BudgetStore, clock: FakeClock
) -> None:
    take = minute(100)
    lease = await took(store, asking(take, 60))
    clock.now_s += SLOT_COUNTS_S
    assert await took(store, asking(take, 100))
    assert lease
    await store.settle(lease, [asking(take, 5)])
    assert await used(store, take) == 100


async def test_a_lease_that_nobody_settles_ends(store: BudgetStore, clock: FakeClock) -> None:
    """Its gateway has died: what it held of the period is free again, exactly at the end."""
    short, long = minute(100), period(100)
    lease = await took(store, asking(short, 40), asking(long, 100), lease_s=30)
    assert lease
    clock.now_s += 29.5
    assert not await took(store, asking(long, 1))
    clock.now_s += 0.5
    assert await used(store, long) == 0
    assert await used(store, short) == 40
    assert await took(store, asking(long, 100))
    await store.settle(lease, [asking(short, 1), asking(long, 1)])
    assert (await used(store, short), await used(store, long)) == (40, 100)


async def test_what_was_spent_outlasts_its_lease(store: BudgetStore, clock: FakeClock) -> None:
    take = period(100)
    lease = await took(store, asking(take, 50), lease_s=10)
    assert lease
    await store.settle(lease, [asking(take, 30)])
    clock.now_s += 100
    assert await used(store, take) == 30


async def test_what_can_never_fit_is_known_to(store: BudgetStore) -> None:
    reply = await store.reserve(name(), [minute(10, 11), period(10, 11)], NEVER)
    assert [state.wait_s for state in reply.states] == [NEVER_S, NEVER_S]


async def test_large_amounts_are_exact(store: BudgetStore) -> None:
    take = period(MAX_AMOUNT)
    lease = await took(store, asking(take, MAX_AMOUNT - 1))
    assert lease
    assert not await took(store, asking(take, 2))
    assert await used(store, take) == MAX_AMOUNT - 1
    await store.settle(lease, [asking(take, MAX_AMOUNT - 3)])
    assert await took(store, asking(take, 3))
    assert not await took(store, asking(take, 1))


async def test_nothing_asked_is_nothing_told(store: BudgetStore) -> None:
    assert await store.look([]) == ()


async def test_at_once_no_more_is_granted_than_the_limit(store: BudgetStore) -> None:
    takes = [minute(1000), period(1000)]
    chance = random.Random(4)
    amounts = [chance.randrange(1, 60) for _ in range(120)]

    async def ask(amount: int) -> int:
        granted = await took(store, *(asking(take, amount) for take in takes))
        return amount if granted else 0

    granted = await asyncio.gather(*map(ask, amounts))
    # What is left is less than the smallest that was refused.
    assert 1000 - 60 < sum(granted) <= 1000
    assert [await used(store, take) for take in takes] == [sum(granted)] * 2


async def test_cancelled_callers_harm_nobody(store: BudgetStore) -> None:
    """What they had begun is done or not; nobody gets another's reply."""
    chance = random.Random(7)
    takes = [period(10**6) for _ in range(8)]
    for place, take in enumerate(takes):
        await took(store, asking(take, 1 + place))
    for _ in range(40):
        leaving = [
            asyncio.create_task(took(store, asking(chance.choice(takes), 1000))) for _ in range(4)
        ]
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
        for task in leaving:
            task.cancel()
        found = await asyncio.gather(*(used(store, take) for take in takes))
        assert [amount % 1000 for amount in found] == [1 + place for place in range(8)]
        await asyncio.gather(*leaving, return_exceptions=True)


@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_it_is_a_simple_sum(
    kind: str, data: st.DataObject, tmp_path: Path, redis: RedisServer, clock: FakeClock
) -> None:
    """Against a model that keeps every reservation and adds them all up each time."""
    with asyncio.Runner() as runner:
        runner.run(_like_the_model(kind, data, tmp_path, redis, clock))


async def _like_the_model(
    kind: str, data: st.DataObject, folder: Path, redis: RedisServer, clock: FakeClock
) -> None:
    async with aclosing(opened(kind, folder, redis, clock)) as store:
        await _compared(store, BudgetModel(clock), data, clock)


async def _compared(
    store: BudgetStore, model: BudgetModel, data: st.DataObject, clock: FakeClock
) -> None:
    clock.now_s = float(int(clock.now_s) + 1000)
    takes = [minute(10), minute(25), period(10), period(40)]
    leases: list[str] = []
    for _ in range(data.draw(st.integers(1, 12))):
        clock.now_s += data.draw(st.sampled_from([0, 0, 0.25, 1, 7.5, 30, 61, 100]))
        amounts = st.integers(0, 12)
        chosen = [asking(take, data.draw(amounts)) for take in takes if data.draw(st.booleans())]
        settles: bool = data.draw(st.booleans())
        if settles and leases:
            lease = data.draw(st.sampled_from(leases))
            settled = [asking(take, data.draw(amounts)) for take in takes]
            await store.settle(lease, settled)
            model.settle(lease, settled)
        else:
            lease, lease_s = name(), data.draw(st.sampled_from([5.0, 90.0]))
            reply = await store.reserve(lease, chosen, lease_s)
            granted, states = model.reserve(lease, chosen, lease_s)
            assert reply.granted == granted
            agree(reply.states, states)
            leases += [lease] * granted
        agree(await store.look(takes), model.look(takes))


def agree(found: tuple[State, ...], expected: list[State]) -> None:
    assert [state.used for state in found] == [state.used for state in expected]
    for field in ("reset_s", "wait_s"):
        times = [getattr(state, field) for state in expected]
        assert [getattr(state, field) for state in found] == pytest.approx(times, abs=1e-3)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_what_is_over_is_forgotten(kind: str, tmp_path: Path, clock: FakeClock) -> None:
    store: BudgetStore = MemoryBudgetStore(clock=clock)
    if kind == "sqlite":
        store = SqliteBudgetStore(tmp_path / "db", deadline_s=DEADLINE_S, clock=clock)
    take = period(100, until_s=clock.now_s + 10)
    lease = await took(store, asking(take, 50))
    assert lease
    clock.now_s += 10
    # The period is over, and what was begun in it is still booked on it.
    await store.settle(lease, [asking(take, 20)])
    assert await used(store, take) == 20
    clock.now_s += GRACE_S
    assert await used(store, take) == 0
    await store.aclose()


async def test_redis_forgets_by_itself(redis: RedisServer) -> None:
    store = RedisBudgetStore(RedisClient(redis.url, DEADLINE_S))
    short, long = minute(100), period(100, until_s=time.time() - GRACE_S - 1)
    lease = await took(store, asking(short, 50), asking(long, 50), lease_s=NEVER)
    assert lease
    assert await used(store, long) == 0
    await store.settle(lease, [asking(short, 1), asking(long, 10)])
    assert (await used(store, short), await used(store, long)) == (1, 0)
    await store.aclose()


async def test_memory_is_bounded_by_what_counts(clock: FakeClock) -> None:
    store = MemoryBudgetStore(clock=clock)
    for _ in range(1000):
        take = minute(10, 1)
        lease = await took(store, take)
        assert lease
        await store.settle(lease, [take])
        clock.now_s += 1
    assert repr(store).startswith("<MemoryBudgetStore 1")
    clock.now_s += 1000
    await store.look([])
    assert repr(store) == "<MemoryBudgetStore 0 counters, 0 leases>"
