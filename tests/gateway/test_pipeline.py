"""The stages between a face and a backend, with policies of the test's own."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from engine.protocol.errors import InvalidRequest
from engine.protocol.frames import Event, Failed, StreamEvent, Usage
from gateway.answer import Answer
from gateway.backends.base import Call, Stream
from gateway.backends.scripted import ScriptedBackend
from gateway.config import (
    BudgetConfig,
    CoalesceConfig,
    ExactCacheConfig,
    RouteCacheConfig,
    RouteConfig,
)
from gateway.pipeline import Pipeline
from gateway.route_policies import policies_of
from gateway.routes import Routes
from gateway.telemetry.metrics import Metrics
from gateway.tenants import OPEN
from gateway.visit import Visit
from policies.base import Mode, Policy, Transformer
from policies.budget import BudgetPolicy
from policies.context import Context, Outcome
from policies.decision import Decision, answer, keep, refuse, rewrite
from policies.holdout import conversation_of
from policies.request import Request
from tests.fakes.serving import HELLO, scripted_config, until

REQUEST = Request(surface="chat", model="chat", messages=[{"role": "user", "content": "Hi"}])


class Fixed(Policy):
    """Decides what it was told to."""

    name = "fixed"

    def __init__(
        self, decision: Decision, mode: Mode = "active", transformer: Transformer | None = None
    ) -> None:
        self.decision = decision
        self.mode = mode
        self.outcomes: list[Outcome] = []
        self.contexts: list[Context] = []
        self._transformer = transformer

    def decide(self, request: Request, context: Context) -> Decision:
        self.contexts.append(context)
        return self.decision

    def transformer(self, request: Request, context: Context) -> Transformer | None:
        return self._transformer

    def settled(self, context: Context, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


class Run:
    """One request through a pipeline with these policies."""

    def __init__(self, *policies: Policy, script: dict[str, Any] = HELLO) -> None:
        config = scripted_config()
        self.backend = ScriptedBackend("one", script)
        self.metrics = Metrics()
        self.visit = Visit("id", "call", "POST", "/v1/chat/completions", tenant=OPEN)
        routes = Routes(config)
        self.pipeline = Pipeline(
            config, routes, {"one": self.backend}, self.metrics, {"chat": list(policies)}
        )

    async def answer(self, request: Request = REQUEST) -> Answer:
        route = self.pipeline.match("chat", None, self.visit)
        return await self.pipeline.answer(request, route, self.visit)

    async def events(self, request: Request = REQUEST) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        async with await self.answer(request) as answer:
            while more := await answer.receive():
                events += more
                if isinstance(more[-1], Event) and more[-1].usage:
                    break
        return events


def text_of(events: list[StreamEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Event))


async def test_a_rewrite_goes_on_in_place_of_the_request() -> None:
    shorter = msgspec.structs.replace(REQUEST, max_tokens=1)
    run = Run(Fixed(rewrite(shorter, "shorter")))
    assert text_of(await run.events()) == "Hel"
    assert run.backend.calls[0].request == shorter


async def test_a_shadow_is_reported_and_changes_nothing() -> None:
    shorter = msgspec.structs.replace(REQUEST, max_tokens=1)
    shadow = Fixed(rewrite(shorter, "shorter"), mode="shadow")
    run = Run(shadow, Fixed(refuse("no"), mode="shadow"))
    answer = await run.answer()
    async with answer:
        assert b'"mode":"shadow","action":"rewrite"' in dict(answer.headers)[b"x-fewer-decisions"]
    assert run.backend.calls[0].request == REQUEST
    decided = run.metrics.text().decode()
    assert 'policy="fixed",route="chat"' in decided


async def test_later_policies_see_what_earlier_ones_made() -> None:
    shorter = msgspec.structs.replace(REQUEST, max_tokens=100)
    run = Run(Fixed(rewrite(shorter, "shorter")), BudgetPolicy(1))
    assert text_of(await run.events()) == "Hel"


class Slow(Fixed):
    """Decides when it is told to."""

    def __init__(self) -> None:
        super().__init__(keep("told"))
        self.begun, self.told = threading.Event(), threading.Event()

    def decide(self, request: Request, context: Context) -> Decision:
        self.begun.set()
        assert self.told.wait(30)
        return super().decide(request, context)


async def test_a_long_prompt_is_decided_while_the_loop_goes_on() -> None:
    """B17: what policies read of a megabyte keeps nobody else waiting."""
    slow = Slow()
    long = msgspec.structs.replace(REQUEST, messages=[{"role": "user", "content": "\n" * 10**6}])
    run = Run(slow)
    asked = asyncio.create_task(run.events(long))
    await until(slow.begun.is_set)
    assert not run.backend.calls
    slow.told.set()
    assert text_of(await asked) == "Hello"
    assert run.backend.calls[0].request == long


async def test_a_refusal_is_a_400_that_names_the_field() -> None:
    run = Run(Fixed(refuse("Not this.", "messages")))
    with pytest.raises(InvalidRequest) as caught:
        await run.answer()
    assert (caught.value.param, caught.value.code) == ("messages", "policy_denied")
    assert not run.backend.calls


async def test_an_answer_asks_no_model_and_no_further_policy() -> None:
    after = Fixed(keep("never asked"))
    run = Run(Fixed(answer("Known.", "known")), after)
    events = await run.events(msgspec.structs.replace(REQUEST, n=2))
    assert text_of(events) == "Known.Known."
    assert isinstance(events[-1], Event)
    assert events[-1].usage == Usage()
    assert not run.backend.calls
    assert not after.contexts
    assert run.visit.model == ""


class Shouting:
    """Holds one event back, and gives what it has in capitals."""

    def __init__(self) -> None:
        self.held: list[Any] = []

    def feed(self, event: Any) -> list[Any]:
        out, self.held = self.held, []
        if not event.finish:
            self.held = [msgspec.structs.replace(event, text=event.text.upper())]
            return out
        return [*out, event]

    def flush(self) -> list[Any]:
        return [*self.held, Event("call", text="!")]


async def test_events_pass_the_transformers() -> None:
    run = Run(Fixed(keep(""), transformer=Shouting()))
    assert text_of(await run.events()) == "HELLO!"
    silent = Run(Fixed(keep(""), mode="shadow", transformer=Shouting()))
    assert text_of(await silent.events()) == "Hello"


async def test_failures_pass_the_transformers_as_they_are() -> None:
    failing = {"steps": [{"text": "a"}, {"fail": {"code": "unavailable"}}]}
    run = Run(Fixed(keep(""), transformer=Shouting()), script=failing)
    events: list[StreamEvent] = []
    async with await run.answer() as answer:
        while more := await answer.receive():
            events += more
    assert text_of(events) == ""
    assert len(events) == 1


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        (HELLO, Outcome(None, 2)),
        ({"steps": [{"text": "a"}, {"fail": {"code": "unavailable"}}]}, Outcome("unavailable", 1)),
    ],
)
async def test_policies_learn_how_it_ended(script: dict[str, Any], outcome: Outcome) -> None:
    policy = Fixed(keep(""))
    run = Run(policy, script=script)
    async with await run.answer() as answer:
        while await answer.receive():
            pass
    assert policy.outcomes == [outcome]


async def test_a_request_that_nobody_took_is_settled_too() -> None:
    policy = Fixed(keep(""))
    run = Run(policy, script={"steps": [{"refuse": {"code": "overloaded"}}]})
    with pytest.raises(Exception, match="The script says so"):
        await run.answer()
    assert policy.outcomes == [Outcome("overloaded", 0)]


async def test_leaving_early_cancels_and_is_settled() -> None:
    policy = Fixed(keep(""))
    run = Run(policy, script={"steps": [{"text": "a"}, {"hang": True}]})
    async with await run.answer() as answer:
        await answer.receive()
    assert policy.outcomes == [Outcome("cancelled", 1)]
    assert list(run.backend.cancelled) == ["call"]


def test_a_disabled_policy_is_not_there() -> None:
    bare = RouteConfig(
        "m",
        BudgetConfig(5, mode="disabled"),
        cache=RouteCacheConfig(ExactCacheConfig("disabled")),
        coalesce=CoalesceConfig("disabled"),
    )
    assert policies_of(bare) == []
    (budget,) = policies_of(msgspec.structs.replace(bare, budget=BudgetConfig(5, mode="shadow")))
    assert (budget.name, budget.mode) == ("budget", "shadow")


def test_what_is_built_in_needs_no_setting() -> None:
    built_in = policies_of(RouteConfig("m"))
    assert [(p.name, p.mode, p.holdout) for p in built_in] == [
        ("cache", "active", 0.0),
        ("coalesce", "active", 0.0),
    ]


async def test_contexts_name_route_and_tenant() -> None:
    policy = Fixed(keep(""))
    await Run(policy).events()
    assert policy.contexts == [Context("chat", "open", conversation_of(REQUEST), model="one")]


class Breaking(ScriptedBackend):
    """Streams that just stop after their first text."""

    async def generate(self, call: Call) -> Stream:
        return HalfStream()


class HalfStream(Stream):
    def __init__(self) -> None:
        self.batches: list[list[StreamEvent]] = [[Event("call", text="half")]]

    async def receive(self) -> list[StreamEvent]:
        return self.batches.pop() if self.batches else []

    async def aclose(self) -> None:
        return


async def test_an_answer_that_just_stops_is_a_failure() -> None:
    policy = Fixed(keep(""))
    run = Run(policy)
    backend = Breaking("one", HELLO)
    run.pipeline = Pipeline(
        scripted_config(),
        Routes(scripted_config()),
        {"one": backend},
        run.metrics,
        {"chat": [policy]},
    )
    async with await run.answer() as answer:
        assert text_of(await answer.receive()) == "half"
        (failed,) = await answer.receive()
        assert isinstance(failed, Failed)
        assert await answer.receive() == []
    assert (failed.code, run.visit.status) == ("upstream_failed", 502)
    assert policy.outcomes == [Outcome("upstream_failed", 0)]
