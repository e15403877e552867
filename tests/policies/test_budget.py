"""The policy `budget`. What must never happen: a cap that leaks through another field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.budget import OTHER_NAMES, BudgetPolicy, Learning
from policies.context import Context
from policies.decision import Arithmetic
from policies.lengths import lengths_of
from policies.request import Request

CONTEXT = Context(route="chat")
MESSAGES = [{"role": "user", "content": "List forty garden herbs with one line each."}]


def chat(**fields: Any) -> Request:
    return Request(surface="chat", model="chat", messages=MESSAGES, **fields)


def decided(request: Request, cap: int) -> Request:
    decision = BudgetPolicy(cap).decide(request, CONTEXT)
    assert decision.action in ("keep", "rewrite")
    return decision.request or request


def test_a_missing_limit_is_filled() -> None:
    decision = BudgetPolicy(512).decide(chat(), CONTEXT)
    # Nobody asked for these 512, so a prompt that leaves less room is not refused for them.
    assert decision.request == chat(max_tokens=512, clamp=True)
    assert decision.reason == "max_tokens filled: 512"
    assert decision.tokens == Arithmetic(asked=None, allowed=512)


def test_a_large_limit_is_clamped() -> None:
    decision = BudgetPolicy(5).decide(chat(max_tokens=50), CONTEXT)
    assert decision.request == chat(max_tokens=5)
    assert decision.reason == "max_tokens clamped: 50 to 5"
    assert decision.tokens == Arithmetic(asked=50, allowed=5)


def test_a_small_limit_is_kept() -> None:
    decision = BudgetPolicy(512).decide(chat(max_tokens=7, n=2), CONTEXT)
    assert (decision.action, decision.request) == ("keep", None)
    assert decision.tokens == Arithmetic(asked=14, allowed=14)


@pytest.mark.parametrize(
    ("max_tokens", "n", "cap", "expected"),
    [
        (None, 3, 512, (170, 3)),
        (100, 3, 512, (100, 3)),
        (100, 10, 512, (51, 10)),
        (50, 10, 5, (1, 5)),
        (0, 1, 5, (0, 1)),
    ],
)
def test_choices_share_the_cap(
    max_tokens: int | None, n: int, cap: int, expected: tuple[int, int]
) -> None:
    request = decided(chat(max_tokens=max_tokens, n=n), cap)
    assert (request.max_tokens, request.n) == expected


def test_lowering_n_says_so() -> None:
    decision = BudgetPolicy(5).decide(chat(max_tokens=50, n=10), CONTEXT)
    assert decision.reason == "max_tokens clamped: 50 to 1; n clamped: 10 to 5"
    assert decision.tokens == Arithmetic(asked=500, allowed=5)


def test_prompts_share_the_cap_too() -> None:
    request = Request(surface="completions", model="m", prompts=["a", "b"], max_tokens=16, n=2)
    assert decided(request, 20).max_tokens == 5


def test_more_prompts_than_the_cap_has_tokens_are_refused() -> None:
    request = Request(surface="completions", model="m", prompts=["a"] * 6)
    decision = BudgetPolicy(5).decide(request, CONTEXT)
    assert (decision.action, decision.param) == ("refuse", "prompt")
    assert "6 prompts" in decision.reason


def test_best_of_makes_choices_too() -> None:
    request = decided(chat(max_tokens=100, n=2, parameters={"best_of": 20}), 10)
    assert (request.n, request.parameters["best_of"], request.max_tokens) == (2, 10, 1)


def test_upstreams_own_names_for_the_budget_do_not_arrive() -> None:
    request = decided(chat(max_tokens=50, parameters={"n_predict": 9, "user": "u"}), 512)
    assert (request.max_tokens, request.parameters) == (9, {"user": "u"})


def test_min_tokens_never_exceeds_what_is_allowed() -> None:
    request = decided(chat(parameters={"min_tokens": 30}), 10)
    assert request.parameters["min_tokens"] == 10


def soft_of(request: Request, share: float | None, cap: int = 100) -> int | None:
    decision = BudgetPolicy(cap, soft=share).decide(request, CONTEXT)
    return (decision.request or request).soft_max_tokens


def test_the_soft_limit_is_a_share_of_what_a_choice_may_have() -> None:
    decision = BudgetPolicy(512, soft=0.8).decide(chat(), CONTEXT)
    assert decision.request == chat(max_tokens=512, soft_max_tokens=410, clamp=True)
    assert decision.reason == "max_tokens filled: 512; soft limit: 410"
    assert decision.tokens == Arithmetic(asked=None, allowed=512)
    assert soft_of(chat(max_tokens=50), 0.8) == 40
    assert soft_of(chat(n=4), 0.6) == 15


@pytest.mark.parametrize(
    ("share", "own", "expected"),
    [
        (None, None, None),
        (None, 30, 30),
        (0.6, 30, 30),
        (0.6, 90, 60),
        (1.0, None, None),
        (0.0, None, 1),
        (None, 100, None),
        (None, 10**9, None),
    ],
)
def test_of_the_clients_soft_limit_and_ours_the_lesser_holds(
    share: float | None, own: int | None, expected: int | None
) -> None:
    assert soft_of(chat(soft_max_tokens=own), share) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"parameters": {"response_format": {"type": "json_object"}}},
        {"parameters": {"guided_json": {"type": "object"}}},
        {"parameters": {"grammar": "root ::= x"}},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"parameters": {"functions": [{"name": "f"}]}},
    ],
)
def test_an_answer_that_must_be_whole_gets_no_soft_limit_of_ours(fields: dict[str, Any]) -> None:
    assert soft_of(chat(**fields), 0.6) is None
    assert soft_of(chat(soft_max_tokens=30, **fields), 0.6) == 30


def test_tools_that_may_not_be_called_and_plain_text_do_not_count() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert soft_of(chat(tools=tools, tool_choice="none"), 0.6) == 60
    assert soft_of(chat(parameters={"response_format": {"type": "text"}}), 0.6) == 60
    assert soft_of(chat(parameters={"response_format": "odd"}), 0.6) == 60


def test_the_control_arm_has_the_cap_and_no_soft_limit() -> None:
    decision = BudgetPolicy(100, soft=0.6).control(chat(max_tokens=500), CONTEXT)
    assert decision.request == chat(max_tokens=100)


LEARNING = Learning(percentile=95, least_tokens=20, least_answers=100)


def seen(tokens: int, answers: int = 100) -> Context:
    """So many answers, all of this length."""
    return Context("chat", lengths=lengths_of([(tokens, False)] * answers))


def learned(request: Request, context: Context, cap: int = 512) -> Request:
    return BudgetPolicy(cap, learning=LEARNING).decide(request, context).request or request


def test_a_limit_is_learned_from_the_lengths_of_answers() -> None:
    decision = BudgetPolicy(512, learning=LEARNING).decide(chat(), seen(180))
    assert decision.request == chat(max_tokens=180, clamp=True)
    assert decision.reason == "max_tokens filled: 180; as learned"
    assert decision.tokens == Arithmetic(asked=None, allowed=180)
    assert learned(chat(max_tokens=300), seen(180)).max_tokens == 180
    assert learned(chat(max_tokens=100), seen(180)).max_tokens == 100


def test_what_is_learned_lies_between_its_least_and_the_cap() -> None:
    assert learned(chat(), seen(3)).max_tokens == 20
    assert learned(chat(), seen(9000)).max_tokens == 512
    assert learned(chat(n=4), seen(180)).max_tokens == 128


def test_nothing_is_learned_from_few_answers_or_from_cut_ones() -> None:
    all_cut = Context("chat", lengths=lengths_of([(180, True)] * 200))
    for context in (CONTEXT, seen(180, answers=99), all_cut):
        assert learned(chat(), context).max_tokens == 512


def test_the_control_arm_is_not_cut_where_others_end() -> None:
    """Or it would teach what it was taught."""
    decision = BudgetPolicy(512, learning=LEARNING).control(chat(), seen(180))
    assert decision.request == chat(max_tokens=512, clamp=True)


@pytest.mark.parametrize(
    "fields",
    [
        {"schema": {"type": "object"}},
        {"parameters": {"response_format": {"type": "json_object"}}},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ],
)
def test_what_must_be_whole_is_not_cut_where_others_end(fields: dict[str, Any]) -> None:
    assert learned(chat(**fields), seen(180)).max_tokens == 512
    assert soft_of(chat(**fields), 0.6) is None


def test_the_soft_limit_is_a_share_of_the_learned_one() -> None:
    policy = BudgetPolicy(512, soft=0.5, learning=LEARNING)
    decision = policy.decide(chat(), seen(180))
    assert decision.request == chat(max_tokens=180, soft_max_tokens=90, clamp=True)


def thinking(request: Request, reasoning_tokens: int = 256) -> Request:
    policy = BudgetPolicy(512, reasoning_tokens=reasoning_tokens)
    once = policy.decide(request, CONTEXT)
    assert once.request == policy.control(request, CONTEXT).request
    return once.request or request


def test_what_is_thought_has_a_room_of_its_own() -> None:
    """Or it would eat the answer."""
    decision = BudgetPolicy(512, reasoning_tokens=256).decide(chat(), CONTEXT)
    assert decision.request == chat(max_tokens=512, reasoning_tokens=256, clamp=True)
    assert decision.request.most_tokens == 768
    assert decision.reason == "max_tokens filled: 512; beside it 256 for reasoning"
    assert decision.tokens == Arithmetic(asked=None, allowed=768)
    small = thinking(chat(max_tokens=5))
    assert (small.max_tokens, small.most_tokens) == (5, 261)
    assert thinking(chat(n=4)).reasoning_tokens == 64


@pytest.mark.parametrize(
    "parameters",
    [{"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}],
)
def test_who_wants_no_thought_gets_no_room_for_it(parameters: dict[str, Any]) -> None:
    assert thinking(chat(parameters=parameters)).reasoning_tokens is None
    completion = Request("completions", "m", prompts=["从前"])
    assert thinking(completion).reasoning_tokens is None
    high = {"reasoning_effort": "high", "chat_template_kwargs": "odd"}
    assert thinking(chat(parameters=high)).reasoning_tokens == 256


counts = st.none() | st.integers(0, 10**9)
requests = st.builds(
    Request,
    surface=st.sampled_from(["chat", "completions"]),
    model=st.just("m"),
    prompts=st.lists(st.just("p"), max_size=20),
    max_tokens=counts,
    soft_max_tokens=st.none() | st.integers(1, 10**9),
    n=st.integers(1, 128),
    parameters=st.dictionaries(
        st.sampled_from(["best_of", "min_tokens", "user", *OTHER_NAMES]), st.integers(-1, 10**9)
    ),
)

shares = st.none() | st.floats(0, 1)
contexts = st.just(CONTEXT) | st.integers(1, 6000).map(seen)


@settings(max_examples=300)
@given(requests, st.integers(1, 5000), shares, contexts, counts)
def test_nothing_yields_more_than_the_cap(
    request: Request, cap: int, soft: float | None, context: Context, thought: int | None
) -> None:
    policy = BudgetPolicy(cap, soft=soft, learning=LEARNING, reasoning_tokens=thought)
    decision = policy.decide(request, context)
    if decision.action == "refuse":
        assert len(request.prompts) > cap
        return
    result = decision.request or request
    made = max(result.n, result.parameters.get("best_of", 1)) * max(1, len(result.prompts))
    assert result.max_tokens is not None
    assert made * result.max_tokens <= cap
    assert result.n >= 1
    assert not set(result.parameters) & set(OTHER_NAMES)
    assert result.parameters.get("min_tokens", 0) <= result.max_tokens
    assert request.max_tokens is None or result.max_tokens <= request.max_tokens
    assert result.n <= request.n
    assert result.soft_max_tokens is None or 1 <= result.soft_max_tokens < result.max_tokens
    assert decision.tokens is not None
    assert result.most_tokens is not None
    assert decision.tokens.allowed == made * result.most_tokens <= cap + (thought or 0)


@settings(max_examples=100)
@given(requests, st.integers(20, 5000), shares, contexts)
def test_deciding_twice_changes_nothing_more(
    request: Request, cap: int, soft: float | None, context: Context
) -> None:
    policy = BudgetPolicy(cap, soft=soft, learning=LEARNING)
    once = policy.decide(request, context).request or request
    assert policy.decide(once, context).action == "keep"
