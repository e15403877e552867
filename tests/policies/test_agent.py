"""The policy `agent`. What must never happen: a run that goes on beyond its limits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.agent import CODE, FINISH, AgentPolicy, is_typed, run_of
from policies.context import Context
from policies.counting import message_tokens
from policies.decision import Decision
from policies.request import Request
from tests.fakes.conversations import (
    Message,
    calls,
    chat,
    conversations,
    result,
    said,
    system,
    user,
)

CONTEXT = Context(route="agent")
TOOLS = [{"type": "function", "function": {"name": "look_up"}}]


def run(rounds: int) -> list[Message]:
    messages = [system("你是订票助手。"), user("航班 HAT136 取消了吗？")]
    for _ in range(rounds):
        messages += [calls("a", "b"), result("a", "已取消"), result("b", "12,480")]
    return messages


def decided(messages: list[Message], policy: AgentPolicy, **fields: Any) -> Decision:
    return policy.decide(chat(messages, **{"tools": TOOLS} | fields), CONTEXT)


def test_a_run_is_what_stands_after_the_users_last_message() -> None:
    messages = [
        *run(3),
        said("取消了。"),
        user("那行李呢？"),
        calls("c"),
        result("c", "二十三公斤"),
    ]
    found = run_of(messages)
    assert found.tool_rounds == 1
    assert found.tokens == sum(map(message_tokens, messages[-2:]))
    assert run_of(run(3)).tool_rounds == 3
    assert run_of(run(0)) == run_of([])


@pytest.mark.parametrize(
    ("content", "typed"),
    [
        ("继续", True),
        ("", True),
        ("<tool_response>\n已取消\n</tool_response>", False),
        ("```\n已取消\n```", False),
        ("<tool_response>\n已取消\n</tool_response>\n然后呢？", True),
        ([{"type": "text", "text": "<result>\n已取消\n</result>"}], False),
        ([{"type": "text", "text": "<result>\n已取消\n</result>"}, {"type": "image_url"}], True),
    ],
)
def test_results_that_a_program_sends_as_the_user_begin_no_run(content: Any, typed: bool) -> None:
    assert is_typed({"role": "user", "content": content}) is typed
    assert not is_typed({"role": "assistant", "content": content})


def test_so_many_rounds_are_allowed_and_no_more() -> None:
    policy = AgentPolicy(max_tool_rounds=2)
    kept = decided(run(2), policy)
    assert kept.action == "keep"
    assert kept.reason.startswith("2 rounds of tool calls, ")
    refused = decided(run(3), policy)
    assert (refused.action, refused.code, refused.param) == ("refuse", CODE, "messages")
    assert "3 rounds of tool calls; this route allows 2" in refused.reason
    assert "agent.max_tool_rounds" in refused.reason


def test_so_many_tokens_are_allowed_and_no_more() -> None:
    tokens = run_of(run(2)).tokens
    assert decided(run(2), AgentPolicy(max_run_tokens=tokens)).action == "keep"
    refused = decided(run(2), AgentPolicy(max_run_tokens=tokens - 1))
    assert refused.action == "refuse"
    assert f"{tokens} tokens by estimate; this route allows {tokens - 1}" in refused.reason


@pytest.mark.parametrize("policy", [AgentPolicy(max_tool_rounds=2, finishes=True)])
def test_at_the_limit_the_model_is_made_to_answer(policy: AgentPolicy) -> None:
    assert decided(run(1), policy).action == "keep"
    decision = decided(run(2), policy)
    made = decision.request
    assert made is not None
    assert made.tool_choice == "none"
    assert made.tools == TOOLS
    assert made.messages[:-1] == run(2)[:-1]
    assert made.messages[-1] == result("b", f"12,480\n\n{FINISH}")
    assert decision.reason.startswith("made to answer: 2 rounds")


def test_a_result_in_parts_gets_one_more_and_a_begun_answer_none() -> None:
    policy = AgentPolicy(max_tool_rounds=1, finishes=True)
    parts = [{"type": "text", "text": "已取消"}]
    decision = decided([*run(1)[:-1], {**result("b", ""), "content": parts}], policy)
    assert decision.request is not None
    assert decision.request.messages[-1]["content"] == [*parts, {"type": "text", "text": FINISH}]
    begun = decided([*run(1), said("航班")], policy)
    assert begun.request is not None
    assert begun.request.messages[-1] == said("航班")
    assert begun.request.tool_choice == "none"


def test_who_asks_for_the_answer_gets_it() -> None:
    for finishes in (False, True):
        policy = AgentPolicy(max_tool_rounds=1, max_run_tokens=1, finishes=finishes)
        assert decided(run(9), policy, tool_choice="none").action == "keep"


def test_a_model_that_cannot_be_kept_from_going_on_is_refused() -> None:
    """Its tools are in its prompt, and what it calls is text."""
    results = user("<tool_response>\n已取消\n</tool_response>")
    messages = [user("取消了吗？"), said("look_up()"), results, said("look_up()"), results]
    policy = AgentPolicy(max_run_tokens=10, finishes=True)
    assert decided(messages, policy, tools=None).action == "refuse"


limits = st.none() | st.integers(1, 6)
policies = st.builds(
    AgentPolicy, max_tool_rounds=limits, max_run_tokens=limits, finishes=st.booleans()
)
CHOICES = st.sampled_from([None, "auto", "none", "required"])


@settings(deadline=None)
@given(conversations(), policies, CHOICES, st.sampled_from([None, TOOLS]))
def test_nothing_goes_on_beyond_a_limit(
    messages: list[Message], policy: AgentPolicy, choice: str | None, tools: Any
) -> None:
    request = chat(messages, tools=tools, tool_choice=choice)
    for decision in (policy.decide(request, CONTEXT), policy.control(request, CONTEXT)):
        assert decision.reason.isascii()
        after = decision.request or request
        if decision.action == "refuse" or after.tool_choice == "none":
            continue
        found = run_of(messages)
        assert found.tool_rounds <= (policy.max_tool_rounds or found.tool_rounds)
        assert found.tokens <= (policy.max_run_tokens or found.tokens)


@settings(deadline=None)
@given(conversations(), policies)
def test_a_run_that_is_made_to_answer_keeps_all_that_was_said(
    messages: list[Message], policy: AgentPolicy
) -> None:
    decision = policy.decide(chat(messages, tools=TOOLS), CONTEXT)
    made = decision.request
    if made is None:
        return
    assert policy.finishes
    assert made.messages[:-1] == messages[:-1]
    assert str(made.messages[-1]["content"]).startswith(str(messages[-1]["content"] or ""))
    assert policy.decide(made, CONTEXT).action == "keep"


@settings(deadline=None)
@given(conversations(), st.integers(1, 4))
def test_in_the_control_arm_nobody_is_made_to_answer(messages: list[Message], rounds: int) -> None:
    request: Request = chat(messages, tools=TOOLS)
    policy = AgentPolicy(max_tool_rounds=rounds, finishes=True)
    beyond = run_of(messages).tool_rounds > rounds
    assert policy.control(request, CONTEXT).action == ("refuse" if beyond else "keep")
