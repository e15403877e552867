"""What the arms of a holdout mean on a request's way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import replace

from engine.protocol.errors import InvalidRequest
from gateway.backends.scripted import ScriptedBackend
from gateway.config import BudgetConfig, CoalesceConfig, Config, ExactCacheConfig, RouteConfig
from gateway.config_policies import RouteCacheConfig
from gateway.ledger.ledger import Ledger
from gateway.pipeline import Pipeline
from gateway.route_policies import policies_of
from gateway.routes import Routes
from gateway.stores.ledger import Experiment, LedgerStore
from gateway.telemetry.metrics import Metrics
from gateway.tenants import OPEN
from gateway.visit import Visit
from policies.base import Mode, Policy
from policies.budget import BudgetPolicy
from policies.context import Context
from policies.decision import Decision, answer, refuse, rewrite
from policies.holdout import Arm, arm_of, conversation_of, epoch_of
from policies.request import Request
from tests.fakes.serving import HELLO, Gateway, Serve, scripted_config, until
from tests.gateway.ledger.test_experiments import conversations
from tests.gateway.test_pipeline import Fixed, Shouting

SHARE = 0.5


def in_arm(arm: Arm, policy: Policy) -> Request:
    """A request whose conversation the policy's holdout puts there."""
    for i in range(100):
        request = Request("chat", "chat", messages=[{"role": "user", "content": f"{i}"}])
        conversation = conversation_of(request)
        if arm_of(policy.name, policy.epoch, "open", conversation, policy.holdout) == arm:
            return request
    raise AssertionError("a hundred conversations in the same arm")


def held(policy: Policy) -> Policy:
    policy.holdout, policy.epoch = SHARE, "e"
    return policy


class Run:
    """Requests through one pipeline, with a ledger."""

    def __init__(self, *policies: Policy) -> None:
        config = scripted_config()
        self.backend = ScriptedBackend("one", HELLO)
        self.store = LedgerStore(None)
        self.ledger = Ledger(self.store, Metrics())
        self.pipeline = Pipeline(
            config,
            Routes(config),
            {"one": self.backend},
            Metrics(),
            {"chat": list(policies)},
            ledger=self.ledger,
        )
        self.decisions: list[dict[str, str]] = []

    async def text(self, request: Request) -> str:
        visit = Visit("id", f"call-{request.messages}", "POST", "/", tenant=OPEN)
        route = self.pipeline.match("chat", None, visit)
        text = ""
        async with await self.pipeline.answer(request, route, visit) as stream:
            self.decisions = json.loads(dict(stream.headers)[b"x-fewer-decisions"])
            while events := await stream.receive():
                text += "".join(getattr(event, "text", "") for event in events)
        return text


def capped(request: Request) -> Decision:
    return rewrite(replace(request, max_tokens=1), "capped")


class Capping(Policy):
    """Lets one token through."""

    name = "capping"

    def __init__(self, mode: Mode = "active") -> None:
        self.mode = mode

    def decide(self, request: Request, context: Context) -> Decision:
        return capped(request)


async def test_a_policy_is_obeyed_in_the_treated_arm_alone() -> None:
    policy = held(Capping())
    run = Run(policy)
    assert await run.text(in_arm("treated", policy)) == "Hel"
    assert run.decisions[0]["arm"] == "treated"
    assert await run.text(in_arm("control", policy)) == "Hello"
    assert (run.decisions[0]["action"], run.decisions[0]["arm"]) == ("rewrite", "control")


@pytest.mark.parametrize("decision", [refuse("No."), answer("Known.", "known")])
async def test_the_control_arm_is_neither_refused_nor_answered(decision: Decision) -> None:
    policy = held(Fixed(decision))
    run = Run(policy)
    assert await run.text(in_arm("control", policy)) == "Hello"
    if decision.action == "refuse":
        with pytest.raises(InvalidRequest):
            await run.text(in_arm("treated", policy))
    else:
        assert await run.text(in_arm("treated", policy)) == "Known."


async def test_its_events_pass_no_transformer() -> None:
    run = Run(policy := held(Fixed(capped(Request("chat", "")), transformer=Shouting())))
    assert await run.text(in_arm("control", policy)) == "Hello"


async def test_policies_that_follow_see_the_request_as_it_came() -> None:
    policy, after = held(Capping()), Fixed(refuse("", ""), mode="shadow")
    run = Run(policy, after)
    request = in_arm("control", policy)
    await run.text(request)
    assert run.backend.calls[0].request == request


async def test_the_whole_conversation_is_in_one_arm() -> None:
    policy = held(Capping())
    run = Run(policy)
    first = in_arm("control", policy)
    turns = [*first.messages, {"role": "assistant", "content": "a"}]
    for _ in range(5):
        turns = [*turns, {"role": "user", "content": f"turn {len(turns)}"}]
        await run.text(replace(first, messages=turns))
        assert run.decisions[0]["arm"] == "control"


@pytest.mark.parametrize("mode", ["shadow", "active"])
async def test_without_a_holdout_or_obedience_there_is_no_arm(mode: Mode) -> None:
    policy = Capping(mode)
    policy.holdout = SHARE if mode == "shadow" else 0.0
    run = Run(policy)
    assert await run.text(in_arm("control", held(Capping()))) == (
        "Hel" if mode == "active" else "Hello"
    )
    assert "arm" not in run.decisions[0]


async def test_policies_learn_the_arm() -> None:
    policy = held(Fixed(capped(Request("chat", ""))))
    assert isinstance(policy, Fixed)
    await Run(policy).text(in_arm("control", policy))
    assert policy.outcomes[0].arm == "control"
    assert not policy.outcomes[0].cut


async def test_the_budget_holds_in_both_arms() -> None:
    """A holdout without the clamp would be a way around it."""
    policy = held(BudgetPolicy(1))
    run = Run(policy)
    for arm in ("treated", "control"):
        request = replace(in_arm(arm, policy), max_tokens=50, n=1)
        assert await run.text(request) == "Hel"
        with pytest.raises(InvalidRequest):
            await run.text(replace(request, surface="completions", prompts=["a", "b"], messages=[]))


@pytest.mark.parametrize("arm", ["treated", "control"])
async def test_what_does_harm_is_a_shadow_from_then_on(arm: Arm) -> None:
    policy = held(Capping())
    run = Run(policy)
    costly = conversations("treated", 400, 2.0) + conversations("control", 100)
    run.store.write(
        [replace(each, rulings=(replace(each.rulings[0], policy="capping"),)) for each in costly]
    )
    await run.ledger.look()
    assert run.ledger.is_harmful(Experiment("chat", "capping", "e"))
    assert await run.text(in_arm(arm, policy)) == "Hello"
    assert run.decisions[0]["mode"] == "shadow"
    assert "arm" not in run.decisions[0]
    policy.epoch = "other settings"
    assert await run.text(in_arm("treated", policy)) == "Hel"


async def test_harm_does_not_take_the_cap_off() -> None:
    policy = held(BudgetPolicy(1))
    run = Run(policy)
    run.store.write(conversations("treated", 400, 2.0) + conversations("control", 100))
    await run.ledger.look()
    request = replace(in_arm("treated", policy), max_tokens=50)
    assert await run.text(request) == "Hel"
    assert run.decisions[0]["mode"] == "shadow"


def test_policies_get_their_holdout_and_epoch() -> None:
    settings = BudgetConfig(5, holdout=0.25)
    budget = policies_of(RouteConfig("m", settings))[0]
    assert (budget.name, budget.holdout, budget.epoch) == ("budget", 0.25, epoch_of(settings))


async def test_every_request_is_booked_with_its_arm() -> None:
    policy = held(Capping())
    run = Run(policy)
    await run.text(in_arm("treated", policy))
    await run.text(in_arm("control", policy))
    await run.ledger.flush()
    assert run.store.arms() == {Experiment("chat", "capping", "e"): {"treated": 1, "control": 1}}


def shared(holdout: float) -> Config:
    """One route whose cache and coalescing leave that share of the conversations alone."""
    route = RouteConfig(
        "one",
        cache=RouteCacheConfig(ExactCacheConfig(holdout=holdout)),
        coalesce=CoalesceConfig(holdout=holdout),
    )
    return replace(scripted_config(), routes={"chat": route})


async def together(gateway: Gateway, ask: Callable[[], Coroutine[Any, Any, Any]]) -> list[Any]:
    """Two answers to requests that are there at the same time."""
    first = asyncio.create_task(ask())
    await until(lambda: bool(gateway.scripted.calls))
    second = asyncio.create_task(ask())
    return [await first, await second]


SLOW = {"steps": [{"text": "Hel"}, {"text": "lo", "delay_s": 0.03}]}


@pytest.mark.parametrize(("holdout", "calls"), [(0.0, 1), (1.0, 3)])
async def test_the_control_arm_touches_no_cache(serve: Serve, holdout: float, calls: int) -> None:
    """It neither reads nor writes one, and joins nobody."""
    gateway = await serve(shared(holdout), SLOW)
    answers = await together(gateway, lambda: gateway.chat(temperature=0))
    answers.append(await gateway.chat(temperature=0))
    assert {answer.status_code for answer in answers} == {200}
    assert len(gateway.scripted.calls) == calls


async def test_what_the_control_arm_was_told_is_not_kept_for_the_other(serve: Serve) -> None:
    gateway = await serve(shared(1.0), HELLO)
    await gateway.chat(temperature=0)
    gateway.exchange(shared(0.0))
    await gateway.chat(temperature=0)
    assert len(gateway.scripted.calls) == 2
    await gateway.chat(temperature=0)
    assert len(gateway.scripted.calls) == 2
    gateway.exchange(shared(1.0))
    await gateway.chat(temperature=0)
    assert len(gateway.scripted.calls) == 3
