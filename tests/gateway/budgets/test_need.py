"""What a request may use at most, and what it is told that may not."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gateway.budgets.claims import claims_of, standings_of
from gateway.budgets.limits import Limits, Subject
from gateway.budgets.need import UNCAPPED_OUTPUT_TOKENS, Need, need_of, spent_need
from gateway.budgets.refusal import refusal_of, refusing
from gateway.config import Config, Price
from gateway.routes import Route, Routes
from gateway.stores.budget import MAX_AMOUNT, NEVER_S, State
from gateway.telemetry.metrics import Spent
from policies.request import Request
from tests.fakes.serving import scripted_config

NOW_S = 1_780_000_000.0
HELLO = [{"role": "user", "content": "hello"}]


def with_models(**settings: Any) -> tuple[Config, Route]:
    """A route over `one` and its fallback `two`, which has these settings."""
    config = scripted_config("one", "two")
    models = config.models | {"two": replace(config.models["two"], **settings)}
    config = replace(config, models=models)
    return config, Routes(config).by_name["chat"]


def need(request: Request, **settings: Any) -> Need:
    config, route = with_models(**settings)
    return need_of(request, route, config)


def chat(**fields: Any) -> Request:
    return Request("chat", "chat", messages=HELLO, **fields)


def test_all_choices_count() -> None:
    one = need(chat(max_tokens=10))
    assert one.output_tokens == 10
    assert need(chat(max_tokens=10, n=3)).output_tokens == 30
    assert need(chat(max_tokens=10, n=3)).prompt_tokens == one.prompt_tokens
    assert need(chat(max_tokens=10, parameters={"best_of": 4})).output_tokens == 40
    prompts = Request("completions", "chat", prompts=["你好，世界", [1, 2, 3]], max_tokens=10, n=2)
    assert need(prompts).output_tokens == 40
    # Chinese is not a quarter of its characters.
    assert need(prompts).prompt_tokens >= 3 + 5


def test_tools_are_read_too() -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    assert need(chat(tools=[tool])).prompt_tokens > need(chat()).prompt_tokens + 10


def test_without_a_cap_the_window_is_one() -> None:
    assert need(chat()).output_tokens == UNCAPPED_OUTPUT_TOKENS
    config = scripted_config()
    models = {"one": replace(config.models["one"], max_model_len=100)}
    config = replace(config, models=models)
    found = need_of(chat(), Routes(config).by_name["chat"], config)
    assert found.tokens == 100


@pytest.mark.parametrize(
    ("price", "nanodollars"),
    [
        (None, 0),
        (Price(output=0.5), 5000),
        (Price(output=0.00000001), 1),
        (Price(machine_hour=9.0), 1),
        (Price(output=1e12), MAX_AMOUNT),
    ],
)
def test_the_dearest_model_counts(price: Price | None, nanodollars: int) -> None:
    assert need(chat(max_tokens=10), price=price).amount("budget_dollars") == nanodollars


def test_what_was_spent_is_bounded() -> None:
    spent = spent_need(Spent(10**15, 2), 1e30)
    assert spent.amount("budget_dollars") == spent.amount("budget_tokens") == MAX_AMOUNT
    assert spent_need(Spent(1, 2), None).nanodollars == 0


def refused(limits: Limits, asked: Need, *states: State) -> Any:
    claims = claims_of([Subject("tenant", "acme", limits)], asked, NOW_S)
    worst = refusing(standings_of(claims, states, NOW_S))
    return refusal_of(worst, NOW_S)


def test_who_waits_in_vain_is_not_told_to_wait() -> None:
    """A minute that passes is of no use while the budget is used up."""
    limits = Limits(tokens_per_minute=100, budget_tokens=1000, period="day")
    error = refused(limits, Need(1, 50, 10), State(80, 61.0, 12.5), State(990, 0.0, NEVER_S))
    assert (error.code, error.type, error.param) == (
        "insufficient_quota",
        "insufficient_quota",
        "budget_tokens",
    )
    assert error.retry_after_s is None
    assert error.message == (
        "Budget used up: budget_tokens of the tenant acme, 1,000, until 2026-05-29 00:00 UTC. "
        "This request may need 60, and 10 are left."
    )


def test_who_may_come_again_is_told_when() -> None:
    limits = Limits(requests_per_minute=1, tokens_per_minute=100)
    error = refused(limits, Need(1, 50, 10), State(1, 30.0, 29.2), State(80, 61.0, 42.1))
    assert (error.code, error.param, error.retry_after_s) == (
        "rate_limit_exceeded",
        "tokens_per_minute",
        42.1,
    )
    assert error.message == (
        "Rate limit reached: tokens_per_minute of the tenant acme, 100. This request may need 60, "
        "and 20 are left. Try again in 43 s."
    )


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (Limits(tokens_per_minute=50), "rate_limit_exceeded"),
        (Limits(budget_tokens=50, period="total"), "insufficient_quota"),
        (Limits(budget_dollars=0.000000005), "insufficient_quota"),
    ],
)
def test_what_never_fits_is_told_so(limits: Limits, code: str) -> None:
    error = refused(limits, Need(1, 50, 10, 60), State(0, 0.0, NEVER_S))
    assert (error.code, error.retry_after_s) == (code, None)
    assert error.message.startswith("Request too large: this request may need")
