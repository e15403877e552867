"""Taking from the store's counters, and what happens while the store is away.

`open` lets everything through, `closed` nothing, and `local` has each process count by itself,
from where the counters of periods stood when it last heard of them, and from what it has itself let
through within the last minute: else who drives the store away could begin a new one each time.
What was spent of a period meanwhile is booked once the store is back. A store that has just failed
is left alone for a while, and then asked by this object alone, so that a paused one holds up no
request after the first.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec.structs import replace

from engine.protocol.errors import ServiceError, Unavailable
from gateway.stores.budget import MAX_AMOUNT, BudgetStore, Reply, State, Take
from gateway.stores.budget_memory import MemoryBudgetStore
from gateway.telemetry.metrics import Metrics

WhenAway = Literal["open", "closed", "local"]

AGAIN_AFTER_S = 1.0
"""How long a store that has failed is left alone."""

MAX_UNSETTLED = 10_000
"""Leases that wait to be settled. The oldest ones of more end by themselves."""

MAX_KNOWN = 10_000
"""Counters of which it is remembered how far they had come."""

_BOOKING_LEASE_S = 60.0
_NO_LIMIT = 2 * MAX_AMOUNT
_log = logging.getLogger("fewer.budgets")


class Counting:
    """Closes the store. Needs a running loop.

    make:  the store, which is made when something is limited for the first time
    clock: Unix time in seconds, for counting alone
    """

    def __init__(
        self,
        make: Callable[[], BudgetStore],
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.when_away: WhenAway = "local"
        self._make = make
        self._made: BudgetStore | None = None
        self._metrics = metrics
        self._local = MemoryBudgetStore(clock=clock)
        self._known: OrderedDict[str, int] = OrderedDict()
        self._uncounted: set[str] = set()
        self._unsettled: OrderedDict[str, Sequence[Take]] = OrderedDict()
        self._unbooked: dict[str, Take] = {}
        self._away = False
        self._returning: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "away" if self._away else "in use"
        return f"<Counting {state}, {len(self._unsettled)} unsettled, {self._made!r}>"

    async def reserve(self, lease: str, takes: Sequence[Take], lease_s: float) -> Reply:
        """As the store does, or, while it is away, as `when_away` says: with no states where that
        is `open`. Raises `Unavailable` where it is `closed`."""
        if not self._away:
            try:
                reply = await self._store.reserve(lease, takes, lease_s)
            except ServiceError as error:
                self._fail(error)
                # It may have been done, or will be: then it is given back.
                self._note(lease, [replace(take, amount=0) for take in takes])
            else:
                self._learn(takes, reply.states)
                if reply.granted:
                    await self._follow(lease, takes, lease_s)
                return reply
        self._return_soon(AGAIN_AFTER_S)
        if self.when_away == "closed":
            raise Unavailable(
                "The store of limits is away, and nothing is served without it.",
                retry_after_s=AGAIN_AFTER_S,
            )
        self._uncounted.add(lease)
        if self.when_away == "open":
            return Reply(True, ())
        reply = await self._local.reserve(lease, self._left(takes), lease_s)
        if not reply.granted:
            self._uncounted.discard(lease)
        pairs = zip(reply.states, takes, strict=True)
        states = tuple(
            replace(state, used=state.used + self._before(take)) for state, take in pairs
        )
        return Reply(reply.granted, states)

    async def settle(self, lease: str, takes: Sequence[Take]) -> None:
        """Once for each lease that was granted. Never fails: what cannot be settled now is later,
        as long as the lease lasts."""
        await self._local.settle(lease, takes)
        if lease in self._uncounted:
            self._uncounted.discard(lease)
            self._book(takes)
            return
        if not self._away:
            try:
                return await self._store.settle(lease, takes)
            except ServiceError as error:
                self._fail(error)
        self._note(lease, takes)

    async def look(self, takes: Sequence[Take]) -> tuple[State, ...]:
        """Raises as the store does."""
        return await self._store.look(takes)

    async def aclose(self) -> None:
        if self._returning is not None:
            self._returning.cancel()
            await asyncio.wait([self._returning])
        if self._made is not None:
            await self._made.aclose()

    @property
    def _store(self) -> BudgetStore:
        if self._made is None:
            self._made = self._make()
        return self._made

    async def _follow(self, lease: str, takes: Sequence[Take], lease_s: float) -> None:
        """Know what was let through within the last minute, for when the store is away."""
        if isinstance(self._store, MemoryBudgetStore):
            return  # never is
        minute = [replace(take, limit=_NO_LIMIT) for take in takes if take.windowed]
        if minute:
            await self._local.reserve(lease, minute, lease_s)

    def _learn(self, takes: Sequence[Take], states: Sequence[State]) -> None:
        for take, state in zip(takes, states, strict=True):
            if not take.windowed:
                self._known[take.counter] = state.used
                self._known.move_to_end(take.counter)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def _before(self, take: Take) -> int:
        return 0 if take.windowed else self._known.get(take.counter, 0)

    def _left(self, takes: Sequence[Take]) -> list[Take]:
        """The takes, of what was left when the store was last heard of."""
        return [replace(take, limit=take.limit - self._before(take)) for take in takes]

    def _note(self, lease: str, takes: Sequence[Take]) -> None:
        self._unsettled[lease] = takes
        while len(self._unsettled) > MAX_UNSETTLED:
            self._unsettled.popitem(last=False)

    def _book(self, takes: Sequence[Take]) -> None:
        for take in takes:
            if not take.windowed and take.amount:
                before = self._unbooked.get(take.counter)
                amount = take.amount + (before.amount if before else 0)
                self._unbooked[take.counter] = replace(take, amount=min(amount, MAX_AMOUNT))
        if self._unbooked and not self._away:
            self._return_soon(0.0)

    def _fail(self, error: ServiceError) -> None:
        self._metrics.limit_store_errors.inc()
        if self._away:
            return
        self._away = True
        _log.error("limits are %s. %s", _MEANWHILE[self.when_away], error)
        self._return_soon(AGAIN_AFTER_S)

    def _return_soon(self, after_s: float) -> None:
        if self._returning is None or self._returning.done():
            self._returning = asyncio.create_task(self._return(after_s))
            self._returning.add_done_callback(_report)

    async def _return(self, after_s: float) -> None:
        """Ask the store again and again; once it answers, settle what is left to be."""
        while True:
            await asyncio.sleep(after_s)
            after_s = AGAIN_AFTER_S
            try:
                await self._catch_up()
            except ServiceError as error:
                self._fail(error)
                continue
            if self._away:
                self._away = False
                # All of it is booked now, or will be: it must not count twice the next time.
                self._local.forget_periods()
                _log.warning("limits are counted in their store again")
            if not (self._unsettled or self._unbooked):
                return

    async def _catch_up(self) -> None:
        await self._store.look([])
        while self._unbooked:
            _, take = self._unbooked.popitem()
            lease = f"booking-{secrets.token_hex(8)}"
            unlimited = [replace(take, limit=_NO_LIMIT)]
            try:
                reply = await self._store.reserve(lease, unlimited, _BOOKING_LEASE_S)
            except BaseException:
                self._book([take])
                raise
            self._learn([take], reply.states)
            self._note(lease, [take])
        while self._unsettled:
            lease, takes = next(iter(self._unsettled.items()))
            await self._store.settle(lease, takes)
            self._unsettled.pop(lease, None)


_MEANWHILE = {
    "open": "not checked, as limits.when_away says, until their store is back",
    "closed": "not to be known, and their requests are refused, until their store is back",
    "local": "counted by each process alone until their store is back",
}


def _report(returning: asyncio.Task[None]) -> None:
    """It only ends when all is done; anything else is a fault of ours."""
    if not returning.cancelled() and (error := returning.exception()) is not None:
        _log.critical("the store of limits is not asked any more: %r", error, exc_info=error)
