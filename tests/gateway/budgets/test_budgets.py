"""Reservations: taken for whoever asks, and given back whatever becomes of him."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from engine.protocol.errors import RateLimited
from gateway.budgets.budgets import Budgets
from gateway.budgets.limits import Limits
from gateway.config import Config, LimitsConfig, Price, RouteConfig
from gateway.routes import Route, Routes
from gateway.stores.budget import Reply, Take
from gateway.stores.budget_memory import MemoryBudgetStore
from gateway.telemetry.metrics import Metrics, Spent
from gateway.tenants import OPEN, Tenant
from gateway.visit import Visit
from policies.request import Request
from tests.fakes.serving import scripted_config, until

LIMITS = Limits(requests_per_minute=10, tokens_per_minute=1000, budget_dollars=1, period="total")
REQUEST = Request("chat", "chat", messages=[{"role": "user", "content": "hi"}], max_tokens=100)
PRICE = Price(input=1000, output=1000)


class Slow(MemoryBudgetStore):
    """Waits before it says what it has done."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()
        self.asked = 0

    async def reserve(self, lease: str, takes: Sequence[Take], lease_s: float) -> Reply:
        self.asked += 1
        reply = await super().reserve(lease, takes, lease_s)
        await self.go_on.wait()
        return reply


@pytest.fixture
async def store() -> Slow:
    return Slow()


@pytest.fixture
async def budgets(store: Slow) -> AsyncIterator[Budgets]:
    made = Budgets(lambda: store, Metrics())
    yield made
    store.go_on.set()
    await made.aclose()


def config() -> Config:
    config = scripted_config()
    model = replace(config.models["one"], price=PRICE)
    routes = {"chat": RouteConfig("one", limits=LIMITS)}
    return replace(config, models={"one": model}, routes=routes)


def route(config: Config) -> Route:
    return Routes(config).by_name["chat"]


def visit(tenant: Tenant = OPEN) -> Visit:
    return Visit("id", "call", "POST", "/", tenant=tenant)


async def admit(budgets: Budgets, at: Visit, **more: Any) -> None:
    await budgets.admit(REQUEST, route(config()), config(), at, **more)


async def used(budgets: Budgets) -> list[int]:
    """Requests, tokens, nanodollars."""
    standings = await budgets.look(budgets.subjects(OPEN, route(config())))
    return [standing.state.used for standing in standings]


async def test_who_leaves_while_the_store_is_asked_takes_nothing(
    budgets: Budgets, store: Slow
) -> None:
    leaving = asyncio.create_task(admit(budgets, visit()))
    await until(lambda: store.asked == 1)
    assert (await used(budgets))[0] == 1
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    store.go_on.set()
    await until(lambda: repr(budgets).startswith("<Budgets 0 running"))
    assert await used(budgets) == [0, 0, 0]


async def test_it_is_settled_once(budgets: Budgets, store: Slow) -> None:
    store.go_on.set()
    await admit(budgets, at := visit())
    assert at.reservation
    await at.reservation.settle(Spent(20, 30), 0.05)
    at.reservation.settle_later(Spent(), None)
    await at.reservation.settle(Spent(1, 1), 0.5)
    assert await used(budgets) == [1, 50, 50_000_000]


async def test_what_was_spent_beside_the_answer_is_settled_with_it(
    budgets: Budgets, store: Slow
) -> None:
    store.go_on.set()
    await admit(budgets, at := visit())
    assert at.reservation
    at.reservation.charge(Spent(10, 5), 0.01)
    at.reservation.charge(Spent(10, 5), None)
    await at.reservation.settle(Spent(20, 30), 0.05)
    assert await used(budgets) == [1, 80, 60_000_000]


async def test_a_child_counts_its_tokens_and_no_request(budgets: Budgets, store: Slow) -> None:
    store.go_on.set()
    await admit(budgets, at := visit(), child=True)
    assert at.reservation
    await at.reservation.settle(Spent(20, 30), None)
    assert (await used(budgets))[:2] == [0, 50]
    huge = replace(REQUEST, max_tokens=5000)
    with pytest.raises(RateLimited):
        await budgets.admit(huge, route(config()), config(), visit(), child=True)


async def test_who_is_refused_holds_nothing(budgets: Budgets, store: Slow) -> None:
    store.go_on.set()
    huge = replace(REQUEST, max_tokens=1000)
    with pytest.raises(RateLimited):
        await budgets.admit(huge, route(config()), config(), at := visit())
    assert at.reservation is None
    assert dict(at.limit_headers)[b"x-ratelimit-remaining-tokens"] == b"1000"
    assert await used(budgets) == [0, 0, 0]


def test_whose_limits_a_request_is_under(budgets: Budgets) -> None:
    free = route(scripted_config())
    own, default = Limits(requests_per_minute=1), Limits(requests_per_minute=2)
    tenant = Tenant("acme", "salt", "ab12")
    assert budgets.subjects(tenant, free) == ()
    budgets.keep(LimitsConfig(each_tenant=default))
    assert [str(each) for each in budgets.subjects(tenant, free)] == ["the tenant acme"]
    limited = replace(tenant, limits=own, tenant_limits=own)
    found = budgets.subjects(limited, route(config()))
    assert [(each.kind, each.limits) for each in found] == [
        ("key", own),
        ("tenant", own),
        ("route", LIMITS),
    ]
