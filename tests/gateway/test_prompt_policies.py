"""The settings of the policies that shorten prompts, and how they take part in a request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from engine.protocol.errors import ConfigError, ContextLengthExceeded
from gateway.backends.scripted import ScriptedBackend
from gateway.config import (
    BudgetConfig,
    DedupConfig,
    HistoryConfig,
    InputConfig,
    RouteConfig,
    load,
)
from gateway.pipeline import Pipeline
from gateway.route_policies import policies_of
from gateway.routes import Routes
from gateway.telemetry.metrics import Metrics
from gateway.tenants import OPEN
from gateway.visit import Visit
from policies.context import Context
from policies.counting import VERSION, request_tokens
from policies.dedup import DedupPolicy
from policies.history import HistoryPolicy
from policies.holdout import epoch_of
from policies.request import Request
from policies.summary import SummaryPolicy
from policies.tiers import TieredPolicy
from tests.fakes.serving import scripted_config

HISTORY = HistoryConfig(high_tokens=3000, low_tokens=1000, holdout=0.1)


def route_of(folder: Path, settings: str, model: str = "{gguf: smollm2-135m}") -> RouteConfig:
    path = folder / "fewer.yaml"
    path.write_text(f"models: {{m: {model}}}\nroutes: {{r: {{model: m, {settings}}}}}\n")
    return load(path, {"HOME": str(folder)}).routes["r"]


def test_marks_are_read(tmp_path: Path) -> None:
    route = route_of(tmp_path, "history: {high_tokens: 3000, low_tokens: 1000}")
    assert route.history == HistoryConfig(3000, 1000, "window", 256, 12, None, "active", 0.05)
    assert route_of(tmp_path, "dedup: {}").dedup == DedupConfig(64, "active", 0.05)


@pytest.mark.parametrize(
    ("settings", "model", "message"),
    [
        ("low_tokens: 9", "{gguf: a}", "high_tokens"),
        ("high_tokens: 9, low_tokens: 9", "{gguf: a}", "low_tokens: must be below high_tokens (9)"),
        (
            "high_tokens: 4096, low_tokens: 9",
            "{gguf: a}",
            "high_tokens: must be below the 4096 tok",
        ),
        (
            "high_tokens: 999, low_tokens: 9",
            "{openai: 'http://h/v1', max_model_len: 512}",
            "must be below the 512 tokens that m takes",
        ),
        ("high_tokens: 9, low_tokens: 1, strategy: forget", "{gguf: a}", "strategy"),
        (
            "high_tokens: 999, low_tokens: 99, strategy: summary, summary_tokens: 50",
            "{gguf: a}",
            "summary_tokens: leaves too little of low_tokens (99): record and facts may take half",
        ),
        (
            "high_tokens: 999, low_tokens: 520, strategy: tiered",
            "{gguf: a}",
            "and come to 448.",
        ),
        (
            "high_tokens: 999, low_tokens: 600, strategy: summary, model: mm",
            "{gguf: a}",
            "model: there is no 'mm'. Did you mean m?",
        ),
        ("high_tokens: 9, low_tokens: 1, holdout: 2", "{gguf: a}", "holdout"),
    ],
)
def test_marks_that_cannot_work_are_refused(
    tmp_path: Path, settings: str, model: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        route_of(tmp_path, f"history: {{{settings}}}", model)
    assert message in caught.value.message


def test_an_upstream_of_unknown_window_takes_any_marks(tmp_path: Path) -> None:
    marks = "history: {high_tokens: 99999, low_tokens: 9}"
    assert route_of(tmp_path, marks, "{openai: 'http://h/v1'}").history is not None


def test_the_cut_comes_before_the_references_and_output_before_both() -> None:
    route = RouteConfig("m", budget=BudgetConfig(9), history=HISTORY, dedup=DedupConfig(32))
    policies = policies_of(route)
    assert [policies[i].name for i in (0, -2, -1)] == ["budget", "history", "dedup"]
    history, dedup = policies[-2:]
    assert isinstance(history, HistoryPolicy)
    assert isinstance(dedup, DedupPolicy)
    assert (history.high_tokens, history.low_tokens, dedup.min_tokens) == (3000, 1000, 32)
    assert (history.holdout, history.mode) == (0.1, "active")


def test_other_counts_are_another_experiment() -> None:
    history = policies_of(RouteConfig("m", history=HISTORY))[-1]
    assert history.epoch == f"{epoch_of(HISTORY)}-{VERSION}"


@pytest.mark.parametrize(
    ("strategy", "kind"), [("summary", SummaryPolicy), ("tiered", TieredPolicy)]
)
def test_strategies_have_their_settings(strategy: str, kind: type[SummaryPolicy]) -> None:
    settings = replace(HISTORY, strategy=strategy, summary_tokens=99, facts=5, mode="shadow")
    policy = policies_of(RouteConfig("m", history=settings), 4096)[-1]
    assert type(policy) is kind
    assert (policy.high_tokens, policy.low_tokens, policy.summary_tokens) == (3000, 1000, 99)
    assert (policy.window_tokens, policy.mode, policy.holdout) == (4096, "shadow", 0.1)
    assert getattr(policy, "facts", 5) == 5


def test_what_is_disabled_is_not_asked() -> None:
    disabled = RouteConfig(
        "m", history=HistoryConfig(9, 1, mode="disabled"), dedup=DedupConfig(mode="disabled")
    )
    assert {policy.name for policy in policies_of(disabled)}.isdisjoint({"history", "dedup"})


TOO_LONG = {"steps": [{"refuse": {"code": "context_length_exceeded", "message": "9 fit."}}]}
CHAT = Request(
    "chat",
    "chat",
    messages=[
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "再见"},
    ],
)
ADVICE = "9 fit. The setting history of the route chat would leave old turns out."


@pytest.mark.parametrize(
    ("history", "request_", "message"),
    [
        (None, CHAT, ADVICE),
        (replace(HISTORY, mode="shadow"), CHAT, ADVICE),
        (HISTORY, CHAT, "9 fit."),
        (None, replace(CHAT, messages=CHAT.messages[2:]), "9 fit."),
        (None, Request("completions", "chat", prompts=["Hi"]), "9 fit."),
    ],
)
async def test_what_does_not_fit_is_refused_with_the_setting_that_would_help(
    history: HistoryConfig | None, request_: Request, message: str
) -> None:
    config = replace(scripted_config(), routes={"chat": RouteConfig("one", history=history)})
    backends = {"one": ScriptedBackend("one", TOO_LONG)}
    pipeline = Pipeline(config, Routes(config), backends, Metrics())
    visit = Visit("id", "call", "POST", "/v1/chat/completions", tenant=OPEN)
    with pytest.raises(ContextLengthExceeded) as caught:
        await pipeline.answer(request_, pipeline.match("chat", None, visit), visit)
    assert caught.value.message == message


def called(*ids: str) -> dict[str, Any]:
    function = {"name": "look", "arguments": "{}"}
    calls = [{"id": id, "type": "function", "function": function} for id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


TWO_CALLS: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief and kind. Always finish with the word ORCHID."},
    {"role": "user", "content": "word " * 40},
    called("c1", "c2"),
    {"role": "tool", "tool_call_id": "c1", "content": "word " * 600},
    {"role": "tool", "tool_call_id": "c2", "content": "word " * 20},
    {"role": "user", "content": "word " * 30},
    {"role": "assistant", "content": "word " * 50},
    {"role": "user", "content": "What time is high tide?"},
]


def test_at_every_budget_it_is_whole_and_within_or_refused() -> None:
    """B13: two calls made at once, one of them with a long result."""
    outcomes = set()
    for budget in range(100, 1501, 25):
        history = HistoryConfig(budget, budget // 2, holdout=0)
        policies = policies_of(RouteConfig("m", history=history, input=InputConfig(budget)))
        request = Request(surface="chat", model="m", messages=TWO_CALLS)
        decisions = []
        for policy in policies:
            decisions.append(policy.decide(request, Context("r", "t", "c")))
            request = decisions[-1].request or request
        kept = [TWO_CALLS.index(message) for message in request.messages]
        outcomes.add(len(kept))
        assert kept == sorted(kept)
        assert {0, 7} <= set(kept)
        assert len({2, 3, 4} & set(kept)) in (0, 3)
        is_refused = decisions[-1].action == "refuse"
        assert is_refused == (request_tokens(request) > budget)
    assert outcomes >= {4, 8}
