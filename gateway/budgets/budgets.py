"""Who may use how much: asked before a request runs, told what it spent when it has ended."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from gateway.budgets.claims import Claim, Standing, claims_of, standings_of
from gateway.budgets.counting import Counting
from gateway.budgets.headers import headers_of
from gateway.budgets.limits import Limits, Subject
from gateway.budgets.need import Need, need_of, need_of_embeddings
from gateway.budgets.refusal import refusal_of, refusing
from gateway.budgets.reservation import Reservation
from gateway.budgets.usage import standings
from gateway.config import Config, LimitsConfig
from gateway.routes import Route
from gateway.stores.budget import BudgetStore, Reply
from gateway.stores.budget_memory import MemoryBudgetStore
from gateway.telemetry.metrics import Metrics
from gateway.tenants import Tenant
from gateway.visit import Visit
from policies.request import Request

LEASE_MARGIN_S = 60.0
"""A lease lasts so much longer than the answers of all models together may take."""

LEASE_BYTES = 12
_T = TypeVar("_T")


class Budgets:
    """One for a process; it outlasts every configuration. Closes its store.

    make:  the store, which is made when something is limited for the first time
    clock: Unix time in seconds, which says what day it is
    """

    def __init__(
        self,
        make: Callable[[], BudgetStore],
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._counting = Counting(make, metrics, clock=clock)
        self._metrics = metrics
        self._clock = clock
        self._each_tenant: Limits | None = None
        self._running: set[asyncio.Task[Any]] = set()

    @classmethod
    def in_memory(cls, metrics: Metrics) -> Budgets:
        return cls(MemoryBudgetStore, metrics)

    def __repr__(self) -> str:
        return f"<Budgets {len(self._running)} running, {self._counting!r}>"

    def keep(self, settings: LimitsConfig) -> None:
        """What holds from now on."""
        self._each_tenant = settings.each_tenant
        self._counting.when_away = settings.when_away

    def subjects(self, tenant: Tenant, route: Route) -> tuple[Subject, ...]:
        """Whose limits a request is under; none costs nothing."""
        found = []
        if tenant.limits is not None:
            found.append(Subject("key", tenant.key_id, tenant.limits))
        if (limits := tenant.tenant_limits or self._each_tenant) is not None:
            found.append(Subject("tenant", tenant.name, limits))
        if (limits := route.config.limits) is not None:
            found.append(Subject("route", route.name, limits))
        return tuple(found)

    async def admit(
        self, request: Request, route: Route, config: Config, visit: Visit, *, child: bool = False
    ) -> None:
        """Reserve what the request may use, noted in the visit, with which it is settled.

        child: made for another request of the same tenant (a summary): it counts as none itself
        Raises `RateLimited`, and `Unavailable` where the store is away and that is to close.
        """
        if subjects := self.subjects(visit.known_tenant, route):
            need = need_of(request, route, config)
            if child:
                need = msgspec.structs.replace(need, requests=0)
            await self._admit(subjects, need, lease_s_of(route, config), visit)

    async def admit_embeddings(
        self, given: str | list[Any], route: Route, config: Config, visit: Visit
    ) -> None:
        """The same for what is embedded."""
        if subjects := self.subjects(visit.known_tenant, route):
            need = need_of_embeddings(given, route, config)
            await self._admit(subjects, need, lease_s_of(route, config), visit)

    async def look(self, subjects: Sequence[Subject]) -> tuple[Standing, ...]:
        """Where each limit stands. Raises as the store does."""
        return await standings(self._counting, subjects, self._clock())

    async def settle(self, lease: str, claims: Sequence[Claim]) -> None:
        """See `Reservation.settle`. A cancelled caller leaves it to be finished."""
        await asyncio.shield(self.settle_later(lease, claims))

    def settle_later(self, lease: str, claims: Sequence[Claim]) -> asyncio.Task[None]:
        return self._spawn(self._counting.settle(lease, [claim.take for claim in claims]))

    async def aclose(self) -> None:
        """Settle what is being settled."""
        while self._running:
            await asyncio.wait(self._running)
        await self._counting.aclose()

    async def _admit(
        self, subjects: Sequence[Subject], need: Need, lease_s: float, visit: Visit
    ) -> None:
        """Of all subjects in one step."""
        now_s = self._clock()
        claims = claims_of(subjects, need, now_s)
        lease = secrets.token_hex(LEASE_BYTES)
        reply = await self._take(lease, claims, lease_s)
        # Where nothing is counted, nothing is known.
        found = standings_of(claims, reply.states, now_s) if reply.states else ()
        visit.limit_headers = headers_of(found)
        if reply.granted:
            visit.reservation = Reservation(self, claims, lease)
            return
        worst = refusing(found)
        self._metrics.limit_refusals.labels(worst.claim.field, worst.claim.subject.kind).inc()
        raise refusal_of(worst, now_s)

    async def _take(self, lease: str, claims: Sequence[Claim], lease_s: float) -> Reply:
        taking = self._spawn(
            self._counting.reserve(lease, [claim.take for claim in claims], lease_s)
        )
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            # The client has left; what is taken all the same is given back.
            self._spawn(self._give_back(taking, lease, claims))
            raise

    async def _give_back(
        self, taking: asyncio.Task[Reply], lease: str, claims: Sequence[Claim]
    ) -> None:
        await asyncio.wait([taking])
        if taking.exception() is None and taking.result().granted:
            nothing = [msgspec.structs.replace(claim.take, amount=0) for claim in claims]
            await self._counting.settle(lease, nothing)

    def _spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may be left to be told


def lease_s_of(route: Route, config: Config) -> float:
    """Longer than the answer can take, whichever of the models are tried."""
    return sum(config.models[name].timeout_s for name in route.models) + LEASE_MARGIN_S
