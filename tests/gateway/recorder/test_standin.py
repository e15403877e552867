"""What stands for a recorded request weighs the same, and is cut at the same place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.recorder.standin import request_of
from policies.agent import AgentPolicy, is_typed, run_of
from policies.budget import BudgetPolicy
from policies.cache import key_of, why_unrepeatable
from policies.context import Context
from policies.counting import message_tokens, request_tokens
from policies.decision import Decision
from policies.history import HistoryPolicy
from policies.request import Request
from tests.gateway.recorder.lines import a_line

CONTEXT = Context("chat")
TOOLS = [{"type": "function", "function": {"name": "find", "description": "找一个航班"}}]

texts = st.text(max_size=400) | st.sampled_from(
    ["```\nprint(1)\n```", "<file>\n你好\n</file>", "东京有多少人口？" * 9, "How many? " * 40]
)


@st.composite
def turns(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A message of the user and what follows it, with calls of tools in some."""
    made: list[dict[str, Any]] = [{"role": "user", "content": draw(texts)}]
    if draw(st.booleans()):
        made[0]["metadata"] = {"pin": True}
    for round in range(draw(st.integers(0, 2))):
        ids = [f"call_{round}_{i}_{draw(st.integers(0, 999))}" for i in range(2)]
        function = {"name": "find", "arguments": draw(texts)}
        calls = [{"id": id, "type": "function", "function": function} for id in ids]
        made.append({"role": "assistant", "content": None, "tool_calls": calls})
        made += [{"role": "tool", "tool_call_id": id, "content": draw(texts)} for id in ids]
    return [*made, {"role": "assistant", "content": draw(texts)}]


@st.composite
def requests(draw: st.DrawFn) -> Request:
    start = [{"role": "system", "content": draw(texts)}]
    rest = [each for turn in draw(st.lists(turns(), max_size=5)) for each in turn]
    return Request(
        surface="chat",
        model="chat",
        messages=[*start, *rest, {"role": "user", "content": draw(texts)}],
        tools=draw(st.sampled_from([None, TOOLS])),
        max_tokens=draw(st.none() | st.integers(1, 9000)),
        n=draw(st.integers(1, 3)),
        parameters=draw(st.sampled_from([{}, {"seed": 7}, {"temperature": 0.5}])),
    )


def stand_in(request: Request) -> Request:
    return request_of(a_line(request))


def shape(decision: Decision) -> tuple[Any, ...]:
    after = decision.request
    return decision.action, decision.reason, decision.tokens, decision.prompt, after and after.n


@given(requests())
def test_it_weighs_the_same(request: Request) -> None:
    made = stand_in(request)
    for original, message in zip(request.messages, made.messages, strict=True):
        off = message_tokens(message) - message_tokens(original)
        # A call of a few bytes may weigh less than the shortest that can be made.
        assert 0 <= off <= (40 if message.get("tool_calls") else 1)
        assert is_typed(message) == is_typed(original)
    assert run_of(made.messages).tool_rounds == run_of(request.messages).tool_rounds


@given(requests(), st.integers(40, 2000))
def test_policies_that_count_decide_alike(request: Request, high_tokens: int) -> None:
    made = stand_in(request)
    if request_tokens(made) != request_tokens(request):
        return  # see above
    for policy in (
        HistoryPolicy(high_tokens, high_tokens // 2),
        BudgetPolicy(512, soft=0.5),
        AgentPolicy(max_tool_rounds=1),
    ):
        assert shape(policy.decide(made, CONTEXT)) == shape(policy.decide(request, CONTEXT))
    assert why_unrepeatable(made) == why_unrepeatable(request)


def key(request: Request) -> bytes:
    return key_of(request, salt="s", route="chat", models=["m"])


BASE = Request("chat", "chat", messages=[{"role": "user", "content": "四十二"}])
OTHERS = [
    replace(BASE, messages=[{"role": "user", "content": "四十三"}]),
    replace(BASE, messages=[{"role": "system", "content": "四十二"}]),
    replace(BASE, parameters={"temperature": 0}),
    replace(BASE, parameters={"stop": ["a"]}),
    replace(BASE, parameters={"stop": ["b"]}),
    replace(BASE, parameters={"response_format": {"type": "json_object"}}),
    replace(BASE, tools=TOOLS),
    replace(BASE, tools=TOOLS, tool_choice="none"),
    replace(BASE, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "f"}}),
    replace(BASE, schema={"type": "object"}),
    replace(BASE, max_tokens=5),
    replace(BASE, n=2),
    Request("completions", "chat", prompts=["ab"]),
    Request("completions", "chat", prompts=["ba"]),
    Request("completions", "chat", prompts=[[1, 2]]),
]


def test_what_differs_still_differs() -> None:
    requests = [BASE, *OTHERS]
    assert len({key(stand_in(request)) for request in requests}) == len(requests)


@pytest.mark.parametrize("request_", [BASE, *OTHERS])
def test_what_is_the_same_still_is(request_: Request) -> None:
    assert key(stand_in(request_)) == key(stand_in(replace(request_, stream=True)))


@pytest.mark.parametrize(
    "parameter", ["response_format", "documents", "functions", "guided_json", "user"]
)
def test_parameters_keep_their_weight(parameter: str) -> None:
    value = [{"title": "文件", "text": "很长" * 50}]
    found = stand_in(replace(BASE, parameters={parameter: value})).parameters[parameter]
    assert found
    assert "文件" not in str(found)


def test_with_content_it_is_the_request_itself() -> None:
    assert request_of(a_line(BASE, with_content=True)) == BASE
