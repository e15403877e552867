"""What a store of budgets means: every reservation is kept, and all are added up each time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.stores.budget import NEVER_S, SLOT_COUNTS_S, State, Take


@dataclass
class Booked:
    """amount: reserved, or spent once it is settled"""

    take: Take
    lease: str
    taken_s: float
    ends_s: float
    amount: int
    settled: bool = False


class BudgetModel:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._booked: list[Booked] = []

    def reserve(
        self, lease: str, takes: Sequence[Take], lease_s: float
    ) -> tuple[bool, list[State]]:
        now_s = self._clock()
        if any(state.wait_s for state in self.look(takes)):
            return False, self.look(takes)
        for take in takes:
            booked = Booked(take, lease, math.floor(now_s), now_s + lease_s, take.amount)
            self._booked.append(booked)
        states = self.look(takes)
        return True, [State(state.used, state.reset_s, 0.0) for state in states]

    def settle(self, lease: str, takes: Sequence[Take]) -> None:
        spent = {take.counter: take.amount for take in takes}
        for each in self._booked:
            if each.lease == lease and not each.settled and self._clock() < each.ends_s:
                each.settled, each.amount = True, spent[each.take.counter]

    def look(self, takes: Sequence[Take]) -> list[State]:
        return [self._state(take, self._clock()) for take in takes]

    def _state(self, take: Take, now_s: float) -> State:
        used = self._used(take, now_s)
        moments = sorted(
            {each.taken_s + SLOT_COUNTS_S for each in self._counting(take, now_s) if each.amount}
        )
        reset_s = moments[-1] - now_s if moments and take.windowed else 0.0
        if take.amount == 0 or used + take.amount <= take.limit:
            return State(used, reset_s, 0.0)
        for moment_s in moments if take.windowed else ():
            if self._used(take, moment_s) + take.amount <= take.limit:
                return State(used, reset_s, moment_s - now_s)
        return State(used, reset_s, NEVER_S)

    def _used(self, take: Take, now_s: float) -> int:
        return sum(each.amount for each in self._counting(take, now_s))

    def _counting(self, take: Take, now_s: float) -> list[Booked]:
        own = [each for each in self._booked if each.take.counter == take.counter]
        if take.windowed:
            return [each for each in own if each.taken_s + SLOT_COUNTS_S > now_s]
        return [each for each in own if each.settled or each.ends_s > now_s]
