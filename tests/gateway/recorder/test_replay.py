"""What a replay counts, policy by policy."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gateway.config import (
    BudgetConfig,
    CoalesceConfig,
    Config,
    DedupConfig,
    ExactCacheConfig,
    HistoryConfig,
    InputConfig,
    RouteCacheConfig,
    RouteConfig,
    RoutingConfig,
    RuleConfig,
    SemanticCacheConfig,
    ShapeConfig,
)
from gateway.recorder.line import Line
from gateway.recorder.replay import Replay
from gateway.recorder.tally import Missing, PolicyTally, Result, Sums
from policies.request import Request
from tests.fakes.ledger import ruling
from tests.fakes.serving import scripted_config
from tests.gateway.recorder.lines import a_line

OFF: dict[str, Any] = {
    "cache": RouteCacheConfig(ExactCacheConfig("disabled")),
    "coalesce": CoalesceConfig("disabled"),
}


def config(**route: Any) -> Config:
    return replace(scripted_config(), routes={"chat": RouteConfig("one", **OFF | route)})


def chat(*texts: str, **fields: Any) -> Request:
    roles = ["user", "assistant"] * len(texts)
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return Request("chat", "chat", messages=messages, **fields)


async def replay(to: Config, *lines: Line) -> Result:
    replaying = Replay(to)
    for line in lines:
        await replaying.add(line)
    return replaying.result()


async def sums(to: Config, *lines: Line) -> tuple[Sums, Sums]:
    (route,) = (await replay(to, *lines)).routes
    assert route.requests == len(lines)
    return route.recorded, route.replayed


async def only(to: Config, *lines: Line) -> PolicyTally:
    (policy,) = (await replay(to, *lines)).policies
    return policy


async def test_the_same_policies_change_nothing() -> None:
    line = a_line(chat("Hi"), tokens=9)
    recorded, replayed = await sums(config(), line, line)
    assert recorded == replayed
    assert (recorded.generations, recorded.completion_tokens) == (2, 18)
    assert recorded.prompt_tokens == 2 * line.ended.sent_tokens


async def test_a_cap_shortens_what_was_longer() -> None:
    lines = [a_line(chat("Hi", max_tokens=40), tokens=tokens) for tokens in (10, 20, 40)]
    to = config(budget=BudgetConfig(15, holdout=0.0))
    recorded, replayed = await sums(to, *lines)
    assert (recorded.completion_tokens, replayed.completion_tokens) == (70, 40)
    assert replayed.cut_short == 2
    policy = await only(to, *lines)
    assert (policy.touched, policy.asked_tokens, policy.allowed_tokens) == (3, 120, 45)


async def test_what_was_cut_may_go_on() -> None:
    cut = a_line(chat("Hi"), chat("Hi", max_tokens=40), tokens=40, cut=True)
    for cap, open_ended in ((40, 0), (80, 1)):
        _, replayed = await sums(config(budget=BudgetConfig(cap, holdout=0.0)), cut)
        assert (replayed.open_ended, replayed.completion_tokens) == (open_ended, 40)
    _, replayed = await sums(config(), cut)
    assert replayed.open_ended == 1


@pytest.mark.parametrize("with_content", [True, False])
async def test_history_is_cut_where_it_would_be(with_content: bool) -> None:
    long = chat(*["词" * 100] * 7)
    line = a_line(long, with_content=with_content)
    to = config(history=HistoryConfig(600, 300, holdout=0.0))
    recorded, replayed = await sums(to, line)
    assert recorded.prompt_tokens > 1300
    assert replayed.prompt_tokens <= 600
    policy = await only(to, line)
    assert (policy.prompt_before, policy.prompt_after) == (
        recorded.prompt_tokens,
        replayed.prompt_tokens,
    )


async def test_the_same_request_again_is_a_hit_or_joins() -> None:
    request = chat("Hi", parameters={"temperature": 0})
    lines = [a_line(request, time_s=1000.2 + at_s) for at_s in (0, 0.1, 60)]
    to = config(cache=RouteCacheConfig(), coalesce=CoalesceConfig())
    recorded, replayed = await sums(to, *lines)
    assert (recorded.generations, recorded.hits, recorded.joined) == (3, 0, 0)
    assert (replayed.generations, replayed.hits, replayed.joined) == (1, 1, 1)
    assert replayed.completion_tokens == 9
    reused = {each.policy: each.reused for each in (await replay(to, *lines)).policies}
    assert reused == {"cache": 1, "coalesce": 1}


async def test_without_the_cache_a_model_must_answer() -> None:
    hit = a_line(chat("Hi"), source="hit", tokens=9)
    recorded, replayed = await sums(config(), hit)
    assert (recorded.hits, recorded.completion_tokens) == (1, 0)
    assert (replayed.hits, replayed.generations, replayed.completion_tokens) == (0, 1, 9)


async def test_the_holdout_is_left_out() -> None:
    lines = [a_line(chat(f"Hi {i}", max_tokens=99)) for i in range(60)]
    policy = await only(config(budget=BudgetConfig(15, holdout=0.5)), *lines)
    assert policy.requests == 60
    assert 15 < policy.held_out < 45
    assert policy.touched == 60 - policy.held_out


async def test_what_was_done_stands_beside_what_would_be() -> None:
    done = [
        ruling(action="rewrite"),
        ruling(action="keep"),
        ruling(action="rewrite", arm="control"),
        ruling(action="rewrite", mode="shadow", arm=None),
    ]
    lines = [a_line(chat("Hi", max_tokens=9), rulings=(each,)) for each in done]
    policy = await only(config(budget=BudgetConfig(5, mode="shadow")), *lines)
    assert (policy.mode, policy.recorded, policy.touched) == ("shadow", 1, 4)
    _, replayed = await sums(config(budget=BudgetConfig(5, mode="shadow")), *lines)
    assert replayed.cut_short == 0


async def test_refusals() -> None:
    many = Request("completions", "chat", prompts=["a", "b", "c"])
    refused = a_line(many, error="policy_denied", rulings=(ruling(action="refuse"),), source="")
    recorded, replayed = await sums(config(budget=BudgetConfig(2, holdout=0.0)), refused)
    assert (recorded.refused, replayed.refused) == (1, 1)
    assert (recorded.generations, replayed.generations) == (0, 0)
    _, replayed = await sums(config(), refused)
    assert (replayed.refused, replayed.generations) == (0, 1)


async def test_answers_of_policies_ask_no_model() -> None:
    given = a_line(chat("Hi"), rulings=(ruling(action="answer"),), source="")
    recorded, replayed = await sums(config(shape=ShapeConfig(answer="We are closed.")), given)
    assert (recorded.answered, replayed.answered) == (1, 1)
    assert (replayed.generations, replayed.completion_tokens) == (0, 0)


@pytest.mark.parametrize("retrieved", ["kept", "ranked"])
async def test_prompts_above_a_limit_are_refused(retrieved: Any) -> None:
    to = config(input=InputConfig(100, retrieved=retrieved))
    found = await replay(to, a_line(chat("词" * 90)), a_line(chat("词")))
    if retrieved == "kept":
        assert (found.policies[0].refused, found.routes[0].replayed.refused) == (1, 1)
    else:
        assert [each.policy for each in found.missing] == ["input"]


async def test_what_needs_content_is_named_and_the_rest_is_replayed() -> None:
    to = config(dedup=DedupConfig(holdout=0.0), budget=BudgetConfig(5, holdout=0.0))
    text = "<doc>\n" + "The very same document. " * 30 + "\n</doc>"
    request = chat(text, "Yes?", text + "\nWhat is in it?", max_tokens=9)
    bare = await replay(to, a_line(request))
    assert bare.missing == [Missing("chat", "dedup", "needs content, which was not recorded")]
    assert [each.policy for each in bare.policies] == ["budget"]
    full = await replay(to, a_line(request, with_content=True))
    assert full.missing == []
    budget, dedup = full.policies
    assert (budget.touched, dedup.touched) == (1, 1)
    assert dedup.prompt_after < dedup.prompt_before


async def test_summaries_need_a_model() -> None:
    to = config(history=HistoryConfig(600, 300, strategy="summary"))
    found = await replay(to, a_line(chat("Hi"), with_content=True))
    assert found.missing == [Missing("chat", "history", "needs a model, for its summaries")]


async def test_what_is_found_by_meaning_is_not_looked_for() -> None:
    semantic = RouteCacheConfig(ExactCacheConfig("disabled"), SemanticCacheConfig())
    found = await replay(config(cache=semantic), a_line(chat("Hi"), with_content=True))
    reason = "finds answers by meaning, which no key tells"
    assert found.missing == [Missing("chat", "semantic", reason)]


@pytest.mark.parametrize("with_content", [True, False])
async def test_a_choice_of_models_goes_by_content(with_content: bool) -> None:
    rule = RuleConfig(model="two", min_prompt_tokens=20)
    to = replace(
        scripted_config("one", "two"),
        routes={"chat": RouteConfig("one", route=RoutingConfig(rules=(rule,), holdout=0.0), **OFF)},
    )
    lines = [a_line(chat("词" * length), with_content=with_content) for length in (1, 100)]
    found = await replay(to, *lines)
    if with_content:
        (policy,) = found.policies
        assert (policy.policy, policy.requests, policy.touched) == ("route", 2, 1)
    else:
        assert [each.policy for each in found.missing] == ["route"]


async def test_routes_that_are_gone_are_counted() -> None:
    found = await replay(config(), a_line(chat("Hi"), route="old"), a_line(chat("Hi")))
    assert (found.requests, found.unknown) == (2, {"old": 1})
    assert found.routes[0].requests == 1
