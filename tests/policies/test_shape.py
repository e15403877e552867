"""The policy `shape`. What must never happen: a schema where tools were asked for."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.protocol.frames import Event, TokenLogprob, Usage
from policies.context import Context
from policies.request import Request
from policies.shape import CONCISE, CONCISE_CHINESE, HiddenReasoning, ShapePolicy
from tests.fakes.conversations import Message, chat, conversations, pinned, said, system, user

CONTEXT = Context(route="chat")
SCHEMA = {"type": "object", "properties": {"总额": {"type": "number"}}, "required": ["总额"]}
TOOLS = [{"type": "function", "function": {"name": "查询"}}]
BRIEF = ShapePolicy(concise=True)
FORMED = ShapePolicy(schema=SCHEMA)


def shaped(request: Request, policy: ShapePolicy = BRIEF) -> Request:
    decision = policy.decide(request, CONTEXT)
    assert decision.action in ("keep", "rewrite")
    return decision.request or request


def test_the_instruction_ends_the_system_message() -> None:
    request = shaped(chat([system("You book flights."), user("Hi")]))
    assert request.messages == [system(f"You book flights.\n\n{CONCISE}"), user("Hi")]
    assert BRIEF.decide(chat([user("Hi")]), CONTEXT).reason == "instruction added"


def test_where_there_is_no_system_message_one_is_put_in_front() -> None:
    assert shaped(chat([user("Hi")])).messages == [system(CONCISE), user("Hi")]
    greeted = [said("How can I help?"), user("Hi")]
    assert shaped(chat(greeted)).messages == [system(CONCISE), *greeted]


def test_a_system_message_in_parts_gets_one_more() -> None:
    parts = [{"type": "text", "text": "You book flights."}]
    message = {"role": "developer", "content": parts, "name": "n"}
    made = shaped(chat([message, user("Hi")])).messages[0]
    assert made == {**message, "content": [*parts, {"type": "text", "text": CONCISE}]}
    assert len(parts) == 1


@pytest.mark.parametrize(
    ("question", "wording"),
    [
        ("航班取消了吗？", CONCISE_CHINESE),
        ("请解释 Python 里的 asyncio 是怎么工作的，以及它什么时候有用", CONCISE_CHINESE),
        ("フライトは予約されましたか", CONCISE),
        ("예약을 확인해 주세요", CONCISE),
        ("Is 航班 the word for flight?", CONCISE),
        ("12,480", CONCISE),
    ],
)
def test_who_asks_in_chinese_is_asked_for_brevity_in_chinese(question: str, wording: str) -> None:
    assert shaped(chat([user(question)])).messages[0] == system(wording)
    in_parts = user("")
    in_parts["content"] = [{"type": "image_url"}, {"type": "text", "text": question}]
    assert shaped(chat([in_parts])).messages[0] == system(wording)


def test_a_text_of_the_routes_own_comes_before_ours() -> None:
    own = ShapePolicy(instruction="只回答航班问题。")
    assert shaped(chat([user("Hi")]), own).messages[0] == system("只回答航班问题。")
    both = ShapePolicy(concise=True, instruction="只回答航班问题。")
    assert shaped(chat([user("Hi")]), both).messages[0] == system(f"只回答航班问题。\n\n{CONCISE}")


def test_a_completion_has_no_place_for_an_instruction_or_a_schema() -> None:
    request = Request("completions", "m", prompts=["从前"])
    assert BRIEF.decide(request, CONTEXT).action == "keep"
    decision = FORMED.decide(request, CONTEXT)
    assert (decision.action, decision.reason) == ("keep", "no schema: the request is no chat")


@settings(deadline=None)
@given(conversations())
def test_a_turn_goes_on_beginning_with_the_one_before(messages: list[Message]) -> None:
    """Or no prefix cache would hold."""
    places = [i for i, message in enumerate(messages) if message["role"] == "user"]
    turns = [shaped(chat(messages[: place + 1])).messages for place in places]
    for earlier, later in pairwise(turns):
        assert later[: len(earlier)] == earlier


@settings(deadline=None)
@given(conversations())
def test_nothing_else_of_a_conversation_changes(messages: list[Message]) -> None:
    made = shaped(chat(messages)).messages
    changed = [message for message in made if message not in messages]
    assert len(changed) == 1
    assert changed[0]["role"] in ("system", "developer")
    assert [message for message in messages if message not in made] == [
        message for message in messages if _is_the_instructed(message, changed[0])
    ]


def _is_the_instructed(message: Message, made: Message) -> bool:
    return "name" in made and message["name"] == made["name"]


def test_a_pin_stays_a_pin() -> None:
    assert shaped(chat([pinned(system("规则")), user("Hi")])).messages[0]["metadata"]["pin"]


def test_a_schema_takes_the_place_of_prose() -> None:
    decision = FORMED.decide(chat([user("多少钱？")], soft_max_tokens=9), CONTEXT)
    assert decision.request == chat([user("多少钱？")], schema=SCHEMA, soft_max_tokens=9)
    assert decision.reason == "schema set"


requests = st.builds(
    chat,
    st.just([user("多少钱？")]),
    tools=st.none() | st.just(TOOLS),
    tool_choice=st.sampled_from([None, "auto", "none", "required"]),
    parameters=st.dictionaries(
        st.sampled_from(["functions", "response_format", "guided_json", "grammar", "seed"]),
        st.sampled_from([{"type": "text"}, {"type": "json_object"}, [{"name": "查询"}], "root"]),
    ),
)


@settings(deadline=None)
@example(chat([user("多少钱？")], parameters={"functions": [{"name": "查询"}]}), "decide")
@given(requests, st.sampled_from(["decide", "control"]))
def test_no_schema_where_tools_are_asked_for_or_a_form_is_named(request: Request, arm: str) -> None:
    named = set(request.parameters) & {"response_format", "guided_json", "grammar", "functions"}
    decision = getattr(FORMED, arm)(request, CONTEXT)
    after = decision.request or request
    assert after.schema == (None if request.tools or named else SCHEMA)
    assert after.parameters == request.parameters
    assert decision.reason.isascii()


def test_the_control_arm_has_all_but_the_instruction() -> None:
    policy = ShapePolicy(concise=True, schema=SCHEMA, hides_reasoning=True)
    decision = policy.control(chat([user("Hi")]), CONTEXT)
    assert decision.request == chat([user("Hi")], schema=SCHEMA)
    assert decision.reason == "schema set; reasoning hidden"
    assert BRIEF.control(chat([user("Hi")]), CONTEXT).action == "keep"


def test_a_fixed_answer_is_given_in_both_arms() -> None:
    policy = ShapePolicy(text="本服务已迁移。")
    for decision in (
        policy.decide(chat([user("Hi")], tools=TOOLS), CONTEXT),
        policy.control(chat([user("Hi")]), CONTEXT),
    ):
        assert (decision.action, decision.text) == ("answer", "本服务已迁移。")
        assert decision.reason.isascii()


events = st.lists(
    st.builds(
        Event,
        st.just("r"),
        choice=st.integers(0, 2),
        kind=st.sampled_from(["text", "reasoning", "refusal", "tool"]),
        text=st.sampled_from(["", "想", "thought"]),
        tokens=st.integers(0, 3),
        logprobs=st.none() | st.just([TokenLogprob("想", 1, -0.5)]),
        finish=st.sampled_from([None, "stop", "length"]),
        seed=st.none() | st.integers(0, 9),
    )
)


@settings(deadline=None)
@given(events)
def test_of_what_a_model_thought_nothing_is_sent(said: list[Event]) -> None:
    """And all else is, in its order, with every end and every seed."""
    hidden = HiddenReasoning()
    sent: list[Any] = [each for event in said for each in hidden.feed(event)] + hidden.flush()
    assert all(each.kind != "reasoning" for each in sent)
    # By identity: one that is emptied may be equal to another that was said.
    as_said = set(map(id, said))
    assert [each for each in sent if id(each) in as_said] == [
        event for event in said if event.kind != "reasoning"
    ]
    for name in ("finish", "seed"):
        told = [(e.choice, getattr(e, name)) for e in said if getattr(e, name) is not None]
        assert [(e.choice, getattr(e, name)) for e in sent if getattr(e, name) is not None] == told
    blank = [each for each in sent if id(each) not in as_said]
    assert all(not (each.text or each.logprobs or each.tokens) for each in blank)


def test_the_usage_stays_true() -> None:
    usage = Event("r", usage=Usage(10, 30, reasoning_tokens=20))
    assert HiddenReasoning().feed(usage) == [usage]
    assert BRIEF.transformer(chat([]), CONTEXT) is None
    hiding = ShapePolicy(hides_reasoning=True)
    assert isinstance(hiding.transformer(chat([]), CONTEXT), HiddenReasoning)
