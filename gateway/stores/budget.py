"""The contract of every store of budgets: what was taken of a limit, and what is left.

Three keep it: `memory` (this process), `sqlite` (the workers of this machine) and `redis` (all
gateways that share one). One test suite holds them to it.

A limit is a counter with a name. It counts what was taken in the last minute, or everything since
it began; then its name says of which period. What a request may need is reserved before it runs,
of all its counters in one step, and exchanged for what it spent when it has ended. A reservation
is a lease: when its gateway dies, what it held of a period is free again at its end.

The last minute is kept in slots of a second, each of which counts until its last moment is a
minute old. So within any 60 seconds no more is taken than the limit, which a token bucket does
not promise (it lets twice as much through), and what is left, and from when on there is more, are
known exactly: they are what the headers say. A slot that lies a minute ahead counts no more than
one that long ago: the clock was set back, and a limit must not stay reached until it is there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import msgspec

WINDOW_S = 60
SLOT_COUNTS_S = WINDOW_S + 1
"""A slot of a second, from its beginning."""

MAX_AMOUNT = 10**15
"""Of anything: above it Redis's numbers are no longer exact."""

GRACE_S = 3600.0
"""So long after its period a counter is kept, for what is settled late."""

NEVER_S = float("inf")


class Take(msgspec.Struct, frozen=True):
    """What is taken of one counter.

    amount:   0 to MAX_AMOUNT; 0 always fits
    limit:    the most that may be taken, with what was taken before
    windowed: it counts the last minute; else everything
    until_s:  Unix time at which its period ends; of one that counts everything
    """

    counter: str
    amount: int
    limit: int
    windowed: bool
    until_s: float = NEVER_S


class State(msgspec.Struct, frozen=True):
    """A counter, as a `Take` found or left it.

    used:    spent, or reserved by those who have not settled yet
    reset_s: of the last minute: seconds until nothing of it counts any more
    wait_s:  seconds until the amount fits if nobody takes more; 0 when it does, infinite when it
             will not within the period, or is more than the limit
    """

    used: int
    reset_s: float
    wait_s: float


class Reply(msgspec.Struct, frozen=True):
    """granted: everything was taken; else nothing was."""

    granted: bool
    states: tuple[State, ...]


class BudgetStore(ABC):
    """Each method ends within the store's deadline, and raises `Unavailable`, `Overloaded` or
    `DeadlineExceeded` when it could not do what it was asked, or does not know whether it did.
    Cancelling one leaves nothing half done.
    """

    @abstractmethod
    async def reserve(self, lease: str, takes: Sequence[Take], lease_s: float) -> Reply:
        """Take all of `takes`, of different counters, or nothing.

        lease:   a name never used before
        lease_s: it ends by itself then, which gives back what it holds of periods
        """

    @abstractmethod
    async def settle(self, lease: str, takes: Sequence[Take]) -> None:
        """Replace what the lease holds of these counters by the amounts, and end it.

        The last minute's are booked to the second in which they were reserved. Does nothing when
        there is no such lease, so it may be repeated where nobody knows whether it was done.
        """

    @abstractmethod
    async def look(self, takes: Sequence[Take]) -> tuple[State, ...]:
        """The counters as they are. Takes nothing."""

    @abstractmethod
    async def aclose(self) -> None:
        """Safe to call twice, and without any use before."""


def counts(second: int, now_s: float) -> bool:
    """Does the slot of this second?"""
    return abs(now_s - second) < SLOT_COUNTS_S


def state_of_window(slots: Iterable[tuple[int, int]], take: Take, now_s: float) -> State:
    """slots: (second, amount) of those that count, the oldest first"""
    kept = list(slots)
    used = sum(amount for _, amount in kept)
    reset_s = kept[-1][0] + SLOT_COUNTS_S - now_s if kept else 0.0
    return State(used, reset_s, _wait_s(kept, used, take, now_s))


def state_of_period(used: int, take: Take) -> State:
    fits = take.amount == 0 or used + take.amount <= take.limit
    return State(used, 0.0, 0.0 if fits else NEVER_S)


def taken(state: State, take: Take, now_s: float) -> State:
    """The state after the take was granted."""
    used = state.used + take.amount
    if not (take.windowed and take.amount):
        return State(used, state.reset_s, 0.0)
    return State(used, max(state.reset_s, int(now_s) + SLOT_COUNTS_S - now_s), 0.0)


def _wait_s(slots: list[tuple[int, int]], used: int, take: Take, now_s: float) -> float:
    excess = used + take.amount - take.limit
    if take.amount == 0 or excess <= 0:
        return 0.0
    for second, amount in slots:
        excess -= amount
        if excess <= 0:
            return second + SLOT_COUNTS_S - now_s
    return NEVER_S
