"""Which model answers, and that it stays the same where it must."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.context import Context
from policies.decision import Decision
from policies.prompt import Per, Prompt
from policies.request import Request
from policies.route import Cascade, Learned, RoutePolicy
from policies.router_model import Router
from policies.rules import Rule
from tests.policies.test_router_model import a_model

CONTEXT = Context(route="chat", model="own")
LOOK = [{"type": "function", "function": {"name": "look"}}]
CALL = {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "look"}}]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "42"}

Message = dict[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def chat(*messages: Message, **fields: Any) -> Request:
    return Request("chat", "chat", list(messages), **fields)


def embed(text: str) -> list[float]:
    """One dimension: is it about proofs?"""
    return [1.0 if "prove" in text or "证明" in text else -1.0]


def by_rules(*rules: Rule, per: Per = "conversation") -> RoutePolicy:
    return RoutePolicy("active", "own", rules, per=per)


def learned(cascade: Cascade | None = None, per: Per = "conversation", **more: Any) -> RoutePolicy:
    return RoutePolicy(
        "active",
        "own",
        weak="small",
        strong="large",
        learned=Learned(Router(a_model(weak=[-4.0]), embed), 0.3),
        cascade=cascade,
        per=per,
        **more,
    )


def decided(policy: RoutePolicy, request: Request) -> Decision:
    return policy.decide(request, CONTEXT)


@pytest.mark.parametrize(
    ("rule", "request_", "other"),
    [
        ({"has": ("tools",)}, chat(user("a"), tools=LOOK), chat(user("a"))),
        ({"has": ("tools",)}, chat(user("a"), parameters={"functions": [1]}), chat(user("a"))),
        ({"has": ("tools",)}, chat(user("a"), {"function_call": {"name": "f"}}), chat(user("a"))),
        ({"has": ("code",)}, chat(user("```\nx\n```")), chat(user("x; y"))),
        ({"min_tokens": 100}, chat(user("很长" * 50)), chat(user("长"))),
        ({"max_tokens": 50}, chat(user("short")), chat(user("long " * 100))),
        ({"script": "han"}, chat(user("证明 x^2")), chat(user("Prove x^2"))),
        ({"script": "kana"}, chat(user("証明してください")), chat(user("请证明"))),
        ({"script": "cyrillic"}, chat(user("Докажи, что 2+2=4")), chat(user("2+2"))),
        ({"pattern": r"(?i)\bprove\b|证明"}, chat(user("请证明")), chat(user("Improve it"))),
        (
            {"has": ("images",)},
            chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
            chat(user("image_url")),
        ),
        ({"has": ("code", "tools")}, chat(user("```\nx\n```"), tools=LOOK), chat(user("```"))),
        ({}, chat(user("anything")), None),
    ],
)
def test_a_rule_holds_for_what_is_all_of_what_it_says(
    rule: dict[str, Any], request_: Request, other: Request | None
) -> None:
    policy = by_rules(Rule("large", **rule))
    assert decided(policy, request_).models == ("large",)
    if other is not None:
        assert decided(policy, other).action == "keep"


def test_the_first_rule_that_holds_decides() -> None:
    policy = by_rules(Rule("a", script="han"), Rule("b", script="latin"), Rule("c"))
    assert [decided(policy, chat(user(text))).models for text in ("中", "x", "?")] == [
        ("a",),
        ("b",),
        ("c",),
    ]


def test_a_rule_that_names_the_routes_own_model_keeps_it() -> None:
    decision = decided(by_rules(Rule("own", script="han"), Rule("large")), chat(user("你好")))
    assert (decision.action, decision.reason) == ("keep", "rule 1, script han: own")


def test_reasons_are_ascii_and_do_not_tell_the_pattern() -> None:
    policy = by_rules(Rule("large", pattern="机密", has=("tools",), min_tokens=1, max_tokens=9999))
    reason = decided(policy, chat(user("机密文件"), tools=LOOK)).reason
    assert reason == "rule 1, tools, 1 tokens and more, 9999 tokens at most, pattern: large"


def test_a_model_that_the_client_has_named_answers() -> None:
    decision = by_rules(Rule("large")).decide(chat(user("x")), replace(CONTEXT, model="other"))
    assert (decision.action, decision.models) == ("keep", ())


def test_what_scores_high_goes_to_the_stronger_model() -> None:
    hard, easy = (decided(learned(), chat(user(text))) for text in ("请证明 1+1=2", "你好"))
    assert (hard.models, easy.models) == (("large",), ("small",))
    assert hard.reason.startswith("scores 0.4")
    assert hard.reason.endswith("at least 0.300: large")
    assert easy.reason.endswith("below 0.300: small")


def test_rules_go_before_the_router() -> None:
    policy = learned(rules=[Rule("code", has=("code",))])
    assert decided(policy, chat(user("prove it\n```\nx\n```"))).models == ("code",)


@pytest.mark.parametrize(
    "request_",
    [
        Request("completions", "chat", prompts=[[1, 2, 3]]),
        chat({"role": "user", "content": [{"type": "image_url"}]}),
        chat({"role": "system", "content": "prove"}),
        chat(),
    ],
)
def test_without_a_text_of_the_users_the_routes_own_model_answers(request_: Request) -> None:
    assert decided(learned(), request_).action == "keep"


def test_completions_are_scored_by_their_first_prompt() -> None:
    request = Request("completions", "chat", prompts=["prove", "x"])
    assert decided(learned(), request).models == ("large",)


CASCADE = Cascade(16, 0.5, 1000)


def test_in_a_cascade_the_weaker_model_begins() -> None:
    alone = RoutePolicy("active", "own", weak="small", strong="large", cascade=CASCADE)
    decision = decided(alone, chat(user("你好")))
    assert (decision.action, decision.models) == ("route", ("small", "large"))
    both = learned(CASCADE)
    assert decided(both, chat(user("你好"))).models == ("small", "large")
    assert decided(both, chat(user("prove"))).models == ("large",)


@pytest.mark.parametrize(
    "request_",
    [
        chat(user("x"), n=2),
        chat(user("x"), tools=LOOK),
        chat(user("x"), CALL, RESULT),
        Request("completions", "chat", prompts=["x"]),
    ],
)
def test_what_one_model_must_answer_whole_is_no_cascade(request_: Request) -> None:
    alone = RoutePolicy("active", "own", weak="small", strong="large", cascade=CASCADE)
    assert decided(alone, request_).models == ("large",)
    assert decided(learned(CASCADE), request_).models == ("small",)


TEXTS = st.sampled_from(["prove", "证明", "你好", "x", "```\ncode\n```", "长" * 200, ""])
ANSWERS = st.builds(lambda text: {"role": "assistant", "content": text}, TEXTS)
LOOPS = st.lists(st.sampled_from([[CALL, RESULT], [CALL, RESULT, RESULT]]), max_size=4)
POLICIES: list[Callable[[Per], RoutePolicy]] = [
    lambda per: learned(per=per),
    lambda per: learned(CASCADE, per=per),
    lambda per: by_rules(
        Rule("a", has=("code",)), Rule("b", min_tokens=300), Rule("c", script="han"), per=per
    ),
    lambda per: by_rules(Rule("a", has=("tools",)), Rule("b"), per=per),
]


@given(
    turns=st.lists(st.tuples(TEXTS, ANSWERS), min_size=1, max_size=4),
    loop=LOOPS,
    policy=st.sampled_from(POLICIES),
    per=st.sampled_from(["conversation", "turn"]),
    drops_tools=st.booleans(),
)
def test_the_model_never_changes_within_a_loop_of_tools(
    turns: list[tuple[str, Message]],
    loop: list[list[Message]],
    policy: Any,
    per: Per,
    drops_tools: bool,
) -> None:
    """Whatever is called and returned, and if the last step offers no tools any more."""
    messages: list[Message] = []
    for text, answer in turns:
        messages += [user(text), answer]
    messages.pop()
    router = policy(per)
    first = decided(router, chat(*messages, tools=LOOK)).models
    for place, step in enumerate(loop):
        messages += step
        last = place == len(loop) - 1
        tools = None if drops_tools and last else LOOK
        assert decided(router, chat(*messages, tools=tools)).models == first


@given(
    turns=st.lists(st.tuples(TEXTS, ANSWERS), min_size=2, max_size=5),
    policy=st.sampled_from(POLICIES),
)
def test_by_conversation_every_turn_goes_where_the_first_went(
    turns: list[tuple[str, Message]], policy: Any
) -> None:
    messages: list[Message] = [{"role": "system", "content": "s"}]
    chosen = set()
    for text, answer in turns:
        messages.append(user(text))
        chosen.add(decided(policy("conversation"), chat(*messages)).models)
        messages.append(answer)
    assert len(chosen) == 1


def test_by_turn_the_latest_message_decides() -> None:
    messages = [user("你好"), {"role": "assistant", "content": "你好"}, user("请证明")]
    assert decided(learned(), chat(*messages)).models == ("small",)
    assert decided(learned(per="turn"), chat(*messages)).models == ("large",)
    assert decided(learned(per="turn"), chat(*messages, CALL, RESULT)).models == ("large",)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "assistant", "system", "tool"])},
            optional={
                "content": st.none()
                | st.text(max_size=30)
                | st.lists(
                    st.none()
                    | st.just({"type": "text", "text": "x"})
                    | st.just({"type": "text", "text": 1}),
                    max_size=3,
                )
            },
        ),
        max_size=5,
    )
)
def test_it_never_raises_and_never_tells_what_the_client_wrote(messages: list[Message]) -> None:
    for make in POLICIES:
        for per in get_args(Per):
            assert decided(make(per), chat(*messages)).reason.isascii()


def test_a_prompt_is_what_is_there_up_to_the_deciding_message() -> None:
    messages = [user("one"), {"role": "assistant", "content": "x" * 900}, user("two")]
    first, latest = (Prompt(chat(*messages), per) for per in ("conversation", "turn"))
    assert (first.text, latest.text) == ("one", "two")
    assert first.tokens < 20 < latest.tokens
    parts = [{"type": "text", "text": "甲"}, {"type": "text", "text": "乙"}]
    assert Prompt(chat({"role": "user", "content": parts}), "turn").text == "甲\n乙"
