"""Everything that has limits, and how far it has come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.budgets.claims import Standing, claims_of, standings_of
from gateway.budgets.limits import Subject
from gateway.budgets.need import Need
from gateway.config import Config
from gateway.stores.budget import State, Take
from gateway.stores.keys import Key, KeyStore
from gateway.tenants import OPEN

LOOKED_AT_ONCE = 500
"""Counters: nobody's request waits for more, and no deadline passes meanwhile."""


def limited(config: Config, store: KeyStore | None = None) -> list[Subject]:
    """Keys, tenants and routes with limits, but keys that nobody can use any more.

    Raises `Unavailable` when the store of keys cannot be asked.
    """
    keys = [] if store is None else [key for key in store.list() if _is_active(key, store)]
    tenants = {} if store is None else store.tenants()
    default = config.limits.each_tenant
    of_tenants = {name: own or default for name, own in (tenants or {OPEN.name: None}).items()}
    of_routes = {name: route.limits for name, route in config.routes.items()}
    return [
        *(Subject("key", key.id, key.limits) for key in keys if key.limits),
        *(Subject("tenant", name, limits) for name, limits in of_tenants.items() if limits),
        *(Subject("route", name, limits) for name, limits in of_routes.items() if limits),
    ]


class Looked(Protocol):
    """Whatever can be asked how far counters have come, such as a `BudgetStore`."""

    async def look(self, takes: Sequence[Take]) -> tuple[State, ...]: ...


async def standings(
    store: Looked, subjects: Sequence[Subject], now_s: float
) -> tuple[Standing, ...]:
    """Where each limit stands. Raises as the store does."""
    claims = claims_of(subjects, Need(requests=0), now_s)
    states: list[State] = []
    for start in range(0, len(claims), LOOKED_AT_ONCE):
        part = claims[start : start + LOOKED_AT_ONCE]
        states += await store.look([claim.take for claim in part])
    return standings_of(claims, states, now_s)


def _is_active(key: Key, store: KeyStore) -> bool:
    return key.state(store.clock()) == "active"
