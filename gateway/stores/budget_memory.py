"""Budgets in this process, gone with it."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence

from gateway.stores.budget import (
    GRACE_S,
    BudgetStore,
    Reply,
    State,
    Take,
    counts,
    state_of_period,
    state_of_window,
    taken,
)

SWEEP_EVERY_S = 60.0
"""How often counters that count nothing any more are looked for."""


class _Counter:
    """slots: amounts by second, the oldest first; spent, held: of one that counts everything."""

    __slots__ = ("held", "slots", "spent", "until_s", "windowed")

    def __init__(self, take: Take) -> None:
        self.windowed = take.windowed
        self.until_s = take.until_s
        self.slots: dict[int, int] = {}
        self.spent = 0
        self.held = 0

    def state(self, take: Take, now_s: float) -> State:
        if not self.windowed:
            return state_of_period(self.spent + self.held, take)
        self._forget(now_s)
        return state_of_window(self.slots.items(), take, now_s)

    def take(self, amount: int, now_s: float) -> None:
        if not self.windowed:
            self.held += amount
        elif amount:
            self._add(int(now_s), amount)

    def exchange(self, held: int, spent: int, second: int, now_s: float) -> None:
        if not self.windowed:
            self.held -= held
            self.spent += spent
        elif counts(second, now_s) and spent != held:
            self._add(second, spent - held)

    def is_over(self, now_s: float) -> bool:
        self._forget(now_s)
        return not self.slots if self.windowed else self.until_s + GRACE_S <= now_s

    def _add(self, second: int, amount: int) -> None:
        is_latest = not self.slots or second >= next(reversed(self.slots))
        self.slots[second] = self.slots.get(second, 0) + amount
        if not is_latest or self.slots[second] <= 0:
            self.slots = {s: amount for s, amount in sorted(self.slots.items()) if amount > 0}

    def _forget(self, now_s: float) -> None:
        slots = self.slots
        if slots and not (
            counts(next(iter(slots)), now_s) and counts(next(reversed(slots)), now_s)
        ):
            self.slots = {s: amount for s, amount in slots.items() if counts(s, now_s)}


class _Lease:
    """held: amounts by counter; second: when they were taken"""

    __slots__ = ("held", "second")

    def __init__(self, takes: Sequence[Take], now_s: float) -> None:
        self.held = {take.counter: take.amount for take in takes}
        self.second = int(now_s)


class MemoryBudgetStore(BudgetStore):
    """clock: Unix time in seconds"""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._counters: dict[str, _Counter] = {}
        self._leases: dict[str, _Lease] = {}
        self._ends: list[tuple[float, str]] = []
        self._swept_s = clock()

    def __repr__(self) -> str:
        return f"<MemoryBudgetStore {len(self._counters)} counters, {len(self._leases)} leases>"

    async def reserve(self, lease: str, takes: Sequence[Take], lease_s: float) -> Reply:
        now_s = self._clock()
        self._tidy(now_s)
        states = self._states(takes, now_s)
        if any(state.wait_s for state in states):
            return Reply(False, states)
        for take in takes:
            counter = self._counters[take.counter] = self._counter(take)
            counter.take(take.amount, now_s)
        self._leases[lease] = _Lease(takes, now_s)
        heapq.heappush(self._ends, (now_s + lease_s, lease))
        return Reply(True, tuple(map(taken, states, takes, [now_s] * len(takes))))

    async def settle(self, lease: str, takes: Sequence[Take]) -> None:
        now_s = self._clock()
        self._tidy(now_s)
        self._end(lease, {take.counter: take.amount for take in takes}, now_s)

    async def look(self, takes: Sequence[Take]) -> tuple[State, ...]:
        now_s = self._clock()
        self._tidy(now_s)
        return self._states(takes, now_s)

    def forget_periods(self) -> None:
        """As if only the last minute had ever been counted here."""
        self._counters = {name: each for name, each in self._counters.items() if each.windowed}
        for lease in self._leases.values():
            lease.held = {name: n for name, n in lease.held.items() if name in self._counters}

    async def aclose(self) -> None:
        self._counters.clear()
        self._leases.clear()
        self._ends.clear()

    def _states(self, takes: Sequence[Take], now_s: float) -> tuple[State, ...]:
        return tuple(self._counter(take).state(take, now_s) for take in takes)

    def _counter(self, take: Take) -> _Counter:
        """It is kept once something was taken of it."""
        return self._counters.get(take.counter) or _Counter(take)

    def _end(self, lease: str, spent: dict[str, int], now_s: float) -> None:
        found = self._leases.pop(lease, None)
        if found is None:
            return
        for name, held in found.held.items():
            if (counter := self._counters.get(name)) is not None:
                # What a lease that was left alone took of the last minute stays taken.
                amount = spent.get(name, held if counter.windowed else 0)
                counter.exchange(held, amount, found.second, now_s)

    def _tidy(self, now_s: float) -> None:
        while self._ends and self._ends[0][0] <= now_s:
            self._end(heapq.heappop(self._ends)[1], {}, now_s)
        if len(self._ends) > 2 * len(self._leases) + 64:
            self._ends = [end for end in self._ends if end[1] in self._leases]
            heapq.heapify(self._ends)
        if now_s - self._swept_s >= SWEEP_EVERY_S:
            self._swept_s = now_s
            over = [name for name, counter in self._counters.items() if counter.is_over(now_s)]
            for name in over:
                del self._counters[name]
