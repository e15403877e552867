"""The weaker model begins; nothing of it is seen unless it is sure."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.protocol.errors import InvalidRequest
from engine.protocol.frames import Event, StreamEvent
from gateway.answer import Answer
from gateway.backends.base import Call, Stream
from gateway.backends.scripted import ScriptedBackend
from gateway.config import CascadeConfig, Config, ModelConfig, Price, RouteConfig, RoutingConfig
from gateway.ledger.entry import Entry
from gateway.ledger.ledger import Ledger
from gateway.pipeline import Pipeline
from gateway.routes import Routes
from gateway.stores.ledger import LedgerStore
from gateway.telemetry.metrics import Metrics
from gateway.tenants import OPEN
from gateway.visit import Visit
from policies.request import Request

ASKED = Request("chat", "chat", [{"role": "user", "content": "法国的首都是哪里？"}])
SAME = replace(ASKED, parameters={"temperature": 0})
PARIS: dict[str, Any] = {"steps": [{"accepted": 7}, {"text": "巴黎"}, {"text": "。"}]}
OVERLOADED: dict[str, Any] = {"steps": [{"refuse": {"code": "overloaded", "message": "Full."}}]}


def said(text: str, lead: float, **more: Any) -> dict[str, Any]:
    """A token whose likeliest alternative is as much less probable."""
    first = (1 + lead) / 2
    tops = [{"token": t, "id": i, "logprob": _log(p)} for i, t, p in
            ((1, text, first), (2, "x", first - lead), (3, "y", 0.0))]  # fmt: skip
    return {"text": text, "logprobs": [tops[0] | {"top": tops}], **more}


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -30.0


def beginning(*leads: float, rest: str = "hang") -> dict[str, Any]:
    """A weak model's script: tokens w0, w1, and so on, with these leads."""
    steps = [{"accepted": 5}, *(said(f"w{i} ", lead) for i, lead in enumerate(leads))]
    return {"steps": [*steps, {"hang": True}] if rest == "hang" else steps}


class Booked(Ledger):
    """Remembers what was booked."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__(LedgerStore(None), metrics)
        self.entries: list[Entry] = []

    def record(self, entry: Entry) -> None:
        self.entries.append(entry)


class Run:
    """A route whose own model is the strong one, over two scripts."""

    def __init__(
        self, weak: dict[str, Any], strong: dict[str, Any] | None = None, **terms: Any
    ) -> None:
        price = Price(input=1.0, output=10.0)
        models = {
            name: ModelConfig(openai="http://127.0.0.1:1/v1", price=price, max_model_len=4096)
            for name in ("weak", "strong")
        }
        cascade = CascadeConfig(**{"tokens": 4, "min_margin": 0.5, **terms})
        routing = RoutingConfig(weak="weak", strong="strong", cascade=cascade, holdout=0.0)
        self.config = Config(models=models, routes={"chat": RouteConfig("strong", route=routing)})
        self.weak = ScriptedBackend("weak", weak)
        self.strong = ScriptedBackend("strong", strong or PARIS)
        self.metrics = Metrics()
        self.ledger = Booked(self.metrics)
        self.pipeline = self.pipeline_of(self.config)
        self.visits = 0

    def pipeline_of(self, config: Config) -> Pipeline:
        backends = {"weak": self.weak, "strong": self.strong}
        return Pipeline(config, Routes(config), backends, self.metrics, ledger=self.ledger)

    def visit(self) -> Visit:
        self.visits += 1
        return Visit("id", f"call{self.visits}", "POST", "/v1/chat/completions", tenant=OPEN)

    async def begin(self, request: Request = ASKED, visit: Visit | None = None) -> Answer:
        visit = visit or self.visit()
        route = self.pipeline.match(request.model, None, visit)
        return await self.pipeline.answer(request, route, visit)

    async def events(
        self, request: Request = ASKED, visit: Visit | None = None
    ) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        async with await self.begin(request, visit) as answer:
            while more := await answer.receive():
                events += more
                if isinstance(more[-1], Event) and more[-1].usage:
                    break
        assert self.is_idle
        return events

    @property
    def is_idle(self) -> bool:
        return not (self.weak.running or self.strong.running)

    def counted(self, result: str) -> bool:
        line = f'fewer_cascades_total{{result="{result}",route="chat"}} 1.0'
        return line in self.metrics.text().decode()


def text_of(events: list[StreamEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Event))


def leads_of(events: list[StreamEvent]) -> list[int | None]:
    """How many likeliest tokens each event with text tells of; None for no logprobs."""
    texts = [event for event in events if isinstance(event, Event) and event.text]
    return [None if e.logprobs is None else len(e.logprobs[0].top) for e in texts]


async def test_a_sure_model_answers_alone() -> None:
    run = Run(beginning(0.9, 0.9, 0.9, 0.9, 0.1, rest="end"))
    visit = run.visit()
    events = await run.events(visit=visit)
    assert text_of(events) == "w0 w1 w2 w3 w4 "
    assert (visit.model, list(run.strong.calls)) == ("weak", [])
    assert [entry.model for entry in run.ledger.entries] == ["weak"]
    assert run.counted("sure")


async def test_an_unsure_one_is_never_seen() -> None:
    run = Run(beginning(0.1, 0.2, 0.9, 0.1))
    visit = run.visit()
    events = await run.events(visit=visit)
    assert text_of(events) == "巴黎。"
    assert visit.model == "strong"
    assert list(run.weak.cancelled) == ["call1-first"]
    assert run.counted("unsure")


@pytest.mark.parametrize("changes", [{"mode": "shadow"}, {"holdout": 1.0}])
async def test_a_shadow_and_the_control_arm_leave_it_to_the_routes_own_model(
    changes: dict[str, Any],
) -> None:
    run = Run(beginning(0.9, 0.9, 0.9, 0.9))
    route = run.config.routes["chat"]
    assert route.route is not None
    routes = {"chat": replace(route, route=replace(route.route, **changes))}
    run.pipeline = run.pipeline_of(replace(run.config, routes=routes))
    visit = run.visit()
    async with await run.begin(visit=visit) as answer:
        assert b'"action":"route"' in dict(answer.headers)[b"x-fewer-decisions"]
    assert (visit.model, len(run.weak.calls)) == ("strong", 0)


async def test_both_are_booked_and_the_client_is_told_of_one() -> None:
    run = Run(beginning(0.1, 0.1, 0.1, 0.1))
    charged: list[Any] = []
    visit = run.visit()
    visit.reservation = SimpleNamespace(  # type: ignore[assignment]
        charge=lambda spent, dollars: charged.append((spent, dollars)),
        settle=_nothing,
        settle_later=lambda spent, dollars: None,
        headers=[],
    )
    events = await run.events(visit=visit)
    assert isinstance(events[-1], Event)
    assert events[-1].usage is not None
    assert (events[-1].usage.prompt_tokens, events[-1].usage.completion_tokens) == (1, 2)
    vain, answer = run.ledger.entries
    assert (vain.model, vain.prompt_tokens, vain.dollars) == ("weak", 5, charged[0][1])
    assert vain.completion_tokens == charged[0][0].completion_tokens > 0
    assert vain.conversation == answer.conversation
    assert [ruling.policy for ruling in vain.rulings] == ["route"]
    assert (answer.model, answer.completion_tokens) == ("strong", 2)
    assert len(charged) == 1


async def _nothing(spent: Any, dollars: Any) -> None:
    return


@pytest.mark.parametrize(("able", "told"), [(True, "w0 w1"), (False, None)])
async def test_what_was_said_is_the_prediction_where_one_is_verified(
    able: bool, told: str | None
) -> None:
    run = Run(beginning(0.0, 0.0, 0.9, 0.9), tokens=2)
    run.strong.capabilities = replace(run.strong.capabilities, prediction=able)
    await run.events()
    prediction = run.strong.calls[0].request.parameters.get("prediction")
    if told is None:
        assert prediction is None
    else:
        assert prediction is not None
        assert prediction["type"] == "content"
        assert prediction["content"].startswith(told)


async def test_a_clients_own_prediction_stays() -> None:
    own = {"type": "content", "content": "里昂"}
    run = Run(beginning(0.0, 0.0, 0.0, 0.0))
    run.strong.capabilities = replace(run.strong.capabilities, prediction=True)
    await run.events(replace(ASKED, parameters={"prediction": own}))
    assert run.strong.calls[0].request.parameters["prediction"] == own


@pytest.mark.parametrize(
    ("parameters", "shown"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 1}, 1),
        ({"logprobs": True, "top_logprobs": 3}, 3),
    ],
)
async def test_a_client_sees_the_logprobs_that_it_asked_for(
    parameters: dict[str, Any], shown: int | None
) -> None:
    run = Run(beginning(0.9, 0.9, 0.9, 0.9, 0.9, rest="end"))
    events = await run.events(replace(ASKED, parameters=parameters))
    assert leads_of(events) == [shown] * 5
    asked = run.weak.calls[0].request.parameters
    assert (asked["logprobs"], asked["top_logprobs"]) == (True, max(2, shown or 0))


async def test_the_stronger_one_is_asked_as_the_client_asked() -> None:
    run = Run(beginning(0.0, 0.0, 0.0, 0.0))
    await run.events()
    assert run.strong.calls[0].request.parameters == {}


@pytest.mark.parametrize(("lead", "model"), [(0.9, "weak"), (0.1, "strong")])
async def test_when_time_is_up_what_has_come_is_judged(lead: float, model: str) -> None:
    run = Run(beginning(lead, lead), tokens=16, wait_ms=20)
    visit = run.visit()
    async with await run.begin(visit=visit) as answer:
        events = await answer.receive()
    assert visit.model == model
    assert text_of(events).startswith("w" if model == "weak" else "")
    assert run.is_idle


async def test_nothing_is_lost_of_what_comes_when_time_is_up() -> None:
    late = [said("a", 0.9), said("b", 0.9, delay_s=0.05), said("c", 0.9)]
    run = Run({"steps": late}, tokens=16, wait_ms=10)
    assert text_of(await run.events()) == "abc"


async def test_after_the_verdict_the_rest_comes_as_it_is_said() -> None:
    steps = [said("a", 0.9), said("b", 0.0, delay_s=0.02), said("c", 0.0, delay_s=0.02)]
    run = Run({"steps": steps}, tokens=1)
    events = await run.events()
    assert text_of(events) == "abc"
    assert leads_of(events) == [None] * 3


async def test_a_short_answer_is_judged_whole() -> None:
    sure, unsure = (Run(beginning(lead, rest="end"), tokens=16) for lead in (0.9, 0.1))
    assert text_of(await sure.events()) == "w0 "
    assert text_of(await unsure.events()) == "巴黎。"
    vain = unsure.ledger.entries[0]
    assert (vain.completion_tokens, vain.estimated) == (1, False)


async def test_who_tells_no_logprobs_is_shown_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = Run({"steps": [{"text": "plain "}] * 6})
    for _ in range(2):
        assert text_of(await run.events()) == "plain " * 6
    assert [record.message for record in caplog.records if record.name == "fewer.route"] == [
        "weak tells no logprobs in time: a cascade cannot judge it, and shows what it says"
    ]


@pytest.mark.parametrize(
    "weak",
    [
        OVERLOADED,
        {"steps": [{"refuse": {"code": "context_length_exceeded", "message": "Too long."}}]},
        {"steps": [said("half", 0.9), {"fail": {"code": "upstream_failed", "message": "Died."}}]},
    ],
)
async def test_when_the_weaker_one_fails_the_stronger_answers(weak: dict[str, Any]) -> None:
    run = Run(weak)
    assert text_of(await run.events()) == "巴黎。"
    assert run.counted("failed")


class Busy(ScriptedBackend):
    """Has no room, and says nothing."""

    async def generate(self, call: Call) -> Stream:
        self.calls.append(call)
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.append(call.id)
        raise AssertionError


async def test_who_has_no_room_in_time_is_not_waited_for() -> None:
    run = Run(PARIS, wait_ms=20)
    run.weak = Busy("weak", PARIS)
    run.pipeline = run.pipeline_of(run.config)
    assert text_of(await run.events()) == "巴黎。"
    assert list(run.weak.cancelled) == ["call1-first"]
    assert run.counted("failed")


WRONG: dict[str, Any] = {"steps": [{"refuse": {"code": "invalid_value", "message": "Wrong."}}]}


async def test_a_fault_of_the_request_is_the_clients() -> None:
    with pytest.raises(InvalidRequest, match="Wrong"):
        await Run(WRONG, WRONG).events()


async def test_a_model_that_may_not_tell_logprobs_refuses_no_client() -> None:
    """OpenAI's reasoning models answer 400 to a field that the client never sent."""
    run = Run(WRONG)
    assert text_of(await run.events()) == "巴黎。"
    assert run.counted("failed")


async def test_a_client_that_leaves_during_the_trial_cancels_it() -> None:
    run = Run(beginning(0.9))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run.begin(), 0.05)
    assert run.is_idle
    assert list(run.weak.cancelled) == ["call1-first"]
    assert not run.strong.calls
    booked = [(e.model, e.prompt_tokens, e.completion_tokens) for e in run.ledger.entries]
    assert booked == [("weak", 5, 1), ("", 0, 0)]


async def test_a_client_that_leaves_later_cancels_whoever_answers() -> None:
    hanging = {"steps": [{"text": "巴"}, {"hang": True}]}
    run = Run(beginning(0.0, 0.0, 0.0, 0.0), hanging)
    async with await run.begin() as answer:
        await answer.receive()
    assert list(run.weak.cancelled) == ["call1-first"]
    assert list(run.strong.cancelled) == ["call1"]
    shown = Run(beginning(0.9, 0.9, 0.9, 0.9), hanging)
    async with await shown.begin() as answer:
        await answer.receive()
    assert list(shown.weak.cancelled) == ["call1-first"]


@pytest.mark.parametrize(
    "request_",
    [
        replace(ASKED, n=2),
        replace(ASKED, tools=[{"type": "function", "function": {"name": "look"}}]),
        Request("completions", "chat", prompts=["Once"]),
    ],
)
async def test_what_cannot_be_tried_goes_to_the_stronger_one(request_: Request) -> None:
    run = Run(beginning(0.9, 0.9, 0.9, 0.9))
    await run.events(request_)
    assert not run.weak.calls


@pytest.mark.parametrize(("lead", "model"), [(0.9, "weak"), (0.1, "strong")])
async def test_the_answer_of_either_is_kept(lead: float, model: str) -> None:
    run = Run(beginning(lead, lead, lead, lead, rest="end"))
    first, second = run.visit(), run.visit()
    assert text_of(await run.events(SAME, first)) == text_of(await run.events(SAME, second))
    assert (first.cache, second.cache, second.model) == ("miss", "hit", model)
    assert leads_of(await run.events(SAME)) == [None] * (4 if model == "weak" else 2)
    assert len(run.weak.calls) == 1


async def test_other_terms_are_another_answer() -> None:
    run = Run(beginning(0.4, 0.4, 0.4, 0.4, rest="end"))
    sharing = run.pipeline._sharing
    assert text_of(await run.events(SAME)) == "巴黎。"
    milder = Run(beginning(0.4, 0.4, 0.4, 0.4, rest="end"), min_margin=0.2)
    milder.pipeline._sharing = sharing
    assert text_of(await milder.events(SAME)) == "w0 w1 w2 w3 "


async def test_the_same_at_once_is_tried_once() -> None:
    run = Run(beginning(0.0, 0.0, 0.0, 0.0))
    answers = await asyncio.gather(*(run.events(SAME) for _ in range(5)))
    assert {text_of(events) for events in answers} == {"巴黎。"}
    assert (len(run.weak.calls), len(run.strong.calls)) == (1, 1)


LEADS = st.lists(st.floats(0.0, 1.0), max_size=12)


@given(leads=LEADS, tokens=st.integers(1, 16), margin=st.floats(0.01, 1.0))
@settings(max_examples=60, deadline=None)
def test_what_is_shown_is_of_one_model_from_its_beginning(
    leads: list[float], tokens: int, margin: float
) -> None:
    """Never both, never the end of one after the beginning of the other."""

    async def ask() -> None:
        run = Run(beginning(*leads, rest="end"), tokens=tokens, min_margin=margin)
        visit = run.visit()
        text = text_of(await run.events(visit=visit))
        weak = "".join(f"w{i} " for i in range(len(leads)))
        assert text == (weak if visit.model == "weak" else "巴黎。")
        judged = leads[:tokens]
        if judged:
            mean = sum(judged) / len(judged)
            if abs(mean - margin) > 1e-6:
                assert visit.model == ("weak" if mean >= margin else "strong")

    asyncio.run(ask())
