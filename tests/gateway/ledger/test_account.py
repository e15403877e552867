"""What requests are booked as, through a whole pipeline."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from engine.protocol.errors import FewerError
from gateway.backends.openai_shapes import MOST_TOKENS
from gateway.backends.scripted import ScriptedBackend
from gateway.config import Price
from gateway.ledger.entry import Entry
from gateway.ledger.ledger import Ledger
from gateway.ledger.machine import Machine
from gateway.pipeline import Pipeline
from gateway.routes import Routes
from gateway.stores.ledger import LedgerStore
from gateway.telemetry.metrics import Metrics
from gateway.tenants import OPEN
from gateway.visit import Visit
from policies.base import Policy
from policies.decision import (
    Arithmetic,
    Decision,
    PromptTokens,
    answer,
    keep,
    refuse,
    rewrite,
)
from policies.holdout import conversation_of
from policies.request import Request
from tests.fakes.clock import FakeClock
from tests.fakes.serving import HELLO, scripted_config
from tests.gateway.test_pipeline import Fixed

LONG = [{"role": "user", "content": "four" * 90}, {"role": "user", "content": "four" * 10}]
REQUEST = Request("chat", "chat", messages=LONG)


class Kept(Ledger):
    """Keeps its entries where a test can see them."""

    def __init__(self) -> None:
        super().__init__(LedgerStore(None), Metrics())
        self.entries: list[Entry] = []
        self.clock = FakeClock()
        self.one = Machine(self.clock)

    def machine(self, model: str) -> Machine:
        return self.one

    def record(self, entry: Entry) -> None:
        self.entries.append(entry)


async def booked(
    *policies: Policy,
    script: dict[str, Any] = HELLO,
    price: Price | None = None,
    reused: bool = False,
    request: Request = REQUEST,
) -> Entry:
    """The one entry of one request, which takes two seconds of the machine."""
    config = scripted_config()
    config = replace(config, models={"one": replace(config.models["one"], price=price)})
    ledger, routes = Kept(), Routes(config)
    backends = {"one": ScriptedBackend("one", script)}
    pipeline = Pipeline(
        config, routes, backends, Metrics(), {"chat": list(policies)}, ledger=ledger
    )
    visit = Visit("id", "call", "POST", "/v1/chat/completions", tenant=OPEN)
    route = pipeline.match("chat", None, visit)
    try:
        async with await pipeline.answer(request, route, visit) as stream:
            visit.reused = reused
            while await stream.receive():
                pass
            ledger.clock.now_s += 2
    except FewerError:
        pass
    (entry,) = ledger.entries
    return entry


async def test_who_what_and_how_much() -> None:
    entry = await booked(Fixed(keep("")))
    assert (entry.route, entry.tenant, entry.model, entry.error) == ("chat", "open", "one", None)
    assert entry.conversation == conversation_of(REQUEST)
    assert entry.completion_tokens == 2
    assert entry.prompt_tokens == entry.origins.user + entry.origins.history
    assert entry.first_token_s is not None
    assert entry.seconds >= entry.first_token_s
    assert (entry.dollars, entry.cut, entry.failed, entry.reused_tokens) == (None, False, False, 0)


async def test_money_by_tokens_and_by_the_hour() -> None:
    by_token = await booked(price=Price(output=5e5))
    assert by_token.dollars == pytest.approx(1.0)
    by_hour = await booked(price=Price(machine_hour=1800.0))
    assert by_hour.dollars == pytest.approx(1.0)


async def test_an_answer_made_for_another_costs_nothing() -> None:
    entry = await booked(price=Price(output=5e5, machine_hour=1800.0), reused=True)
    assert (entry.prompt_tokens, entry.completion_tokens, entry.dollars) == (0, 0, 0.0)
    assert entry.reused_tokens >= 2


async def test_a_policys_own_answer_costs_nothing_and_spares_the_prompt() -> None:
    entry = await booked(Fixed(answer("Known.", "known")), price=Price(output=5e5))
    assert (entry.model, entry.completion_tokens, entry.dollars) == ("", 0, 0.0)
    assert entry.rulings[0].cut_tokens == 100


async def test_a_refusal_is_booked_as_a_failure() -> None:
    entry = await booked(Fixed(refuse("No.")), price=Price(output=5e5))
    assert (entry.error, entry.failed, entry.dollars) == ("policy_denied", True, 0.0)
    assert entry.rulings[0].action == "refuse"


async def test_a_failing_model_is_booked() -> None:
    entry = await booked(script={"steps": [{"text": "a"}, {"fail": {"code": "unavailable"}}]})
    assert (entry.error, entry.failed, entry.completion_tokens) == ("unavailable", True, 1)


async def test_who_leaves_has_not_failed() -> None:
    entry = replace(await booked(), error="cancelled")
    assert not entry.failed


async def test_an_answer_that_is_cut_is_told() -> None:
    entry = await booked(request=replace(REQUEST, max_tokens=1))
    assert entry.cut


SHORTER = rewrite(replace(REQUEST, messages=LONG[1:]), "shorter")
CAPPED = rewrite(replace(REQUEST, max_tokens=1), "capped", Arithmetic(asked=9, allowed=1))


@pytest.mark.parametrize(
    ("decision", "cut"), [(keep(""), 0), (CAPPED, 0), (SHORTER, 90)], ids=["keep", "cap", "cut"]
)
async def test_what_policies_take_out(decision: Decision, cut: int) -> None:
    for mode in ("active", "shadow"):
        entry = await booked(Fixed(decision, mode=mode))
        (ruling,) = entry.rulings
        assert (ruling.policy, ruling.mode, ruling.arm) == ("fixed", mode, None)
        assert ruling.cut_tokens == cut


async def test_the_cap_is_told() -> None:
    (ruling,) = (await booked(Fixed(CAPPED))).rulings
    assert (ruling.asked_tokens, ruling.allowed_tokens) == (9, 1)


async def test_no_upstream_can_break_the_ledger() -> None:
    usage = {"prompt_tokens": MOST_TOKENS, "completion_tokens": MOST_TOKENS}
    entry = await booked(script={"steps": [{"text": "a"}, {"usage": usage}]})
    store = LedgerStore(None)
    store.write([entry] * 100)
    assert store.totals(("tenant",), 0.0)[0]["prompt_tokens"] == 10**14
    store.close()


QUESTION = "日本的首都是哪里？请回答。"
AGAIN = [
    {"role": "user", "content": QUESTION},
    {"role": "assistant", "content": "京都"},
    {"role": "user", "content": QUESTION},
]


async def test_a_question_asked_again_is_told_whatever_policies_left_of_it() -> None:
    assert not (await booked()).repeated
    asked = replace(REQUEST, messages=AGAIN)
    assert (await booked(request=asked)).repeated
    cut = Fixed(rewrite(replace(REQUEST, messages=AGAIN[2:]), "cut"))
    assert (await booked(cut, request=asked)).repeated


JSON = replace(REQUEST, parameters={"response_format": {"type": "json_object"}})


@pytest.mark.parametrize(("text", "unparsed"), [('{"a": 1}', False), ('{"a": ', True)])
async def test_an_answer_that_cannot_be_parsed_is_told(text: str, unparsed: bool) -> None:
    entry = await booked(script={"steps": [{"text": text}]}, request=JSON)
    assert entry.unparsed == unparsed


async def test_a_failed_answer_is_not_called_unparsed_besides() -> None:
    failing = {"steps": [{"text": "{"}, {"fail": {"code": "unavailable"}}]}
    entry = await booked(script=failing, request=JSON)
    assert (entry.failed, entry.unparsed) == (True, False)


async def test_a_policys_own_count_goes_before_an_estimate() -> None:
    shorter = replace(REQUEST, messages=LONG[1:])
    (ruling,) = (
        await booked(Fixed(rewrite(shorter, "shorter", prompt=PromptTokens(70, 20))))
    ).rulings
    assert ruling.cut_tokens == 50


async def test_predictions_are_told() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 1}
    usage |= {"accepted_prediction_tokens": 7, "rejected_prediction_tokens": 3}
    entry = await booked(script={"steps": [{"text": "a"}, {"usage": usage}]})
    assert (entry.accepted_tokens, entry.rejected_tokens) == (7, 3)


async def test_it_is_found_by_its_ids() -> None:
    entry = await booked()
    assert (entry.call_id, entry.request_id) == ("call", "id")
