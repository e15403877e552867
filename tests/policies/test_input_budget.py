"""The policy `input`. What must never happen: more tokens than the route takes, or anything but
retrieved texts left out to get there."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.context import Context
from policies.counting import request_tokens
from policies.decision import Decision, PromptTokens
from policies.input_budget import CODE, InputPolicy
from policies.request import Request
from tests.fakes.conversations import Message, chat, conversations, user

CONTEXT = Context(route="rag")
POOL = "酒店有游泳池和健身房，早餐从七点开始，十点结束。"
CANCEL = "订票后二十四小时内可以免费取消航班，之后取消需要付费。"
BAGS = "每位乘客在航班上可以免费托运二十三公斤以内的行李一件。"
QUESTION = "怎么取消航班？"


def tagged(*texts: str, question: str = QUESTION) -> Request:
    documents = "\n".join(f'<document id="{i}">\n{t}\n</document>' for i, t in enumerate(texts))
    return chat([user(f"<documents>\n{documents}\n</documents>\n\n{question}")])


def decided(request: Request, limit: int) -> Decision:
    return InputPolicy(limit, is_ranked=True).decide(request, CONTEXT)


def test_what_fits_is_kept() -> None:
    request = tagged(POOL, CANCEL)
    tokens = request_tokens(request)
    decision = decided(request, tokens)
    assert (decision.action, decision.reason) == ("keep", f"{tokens} tokens, within {tokens}")


def test_what_does_not_is_refused_with_both_numbers() -> None:
    request = tagged(POOL, CANCEL)
    tokens = request_tokens(request)
    for decision in (
        InputPolicy(20).decide(request, CONTEXT),
        InputPolicy(20, is_ranked=True).control(request, CONTEXT),
    ):
        assert (decision.action, decision.code) == ("refuse", CODE)
        assert f"counts {tokens} tokens" in decision.reason
        assert "the route rag takes 20" in decision.reason
        assert decision.reason.isascii()


def test_the_text_that_has_least_to_do_with_the_question_goes_first() -> None:
    request = tagged(POOL, CANCEL, BAGS)
    tokens = request_tokens(request)
    decision = decided(request, tokens - 5)
    after = request_tokens(tagged(CANCEL, BAGS))
    assert decision.reason == (f"1 of 3 retrieved texts left out (1): {tokens} to {after} tokens")
    assert decision.prompt == PromptTokens(tokens, after)
    assert decision.request is not None
    assert decision.request.messages == [
        user(
            f'<documents>\n<document id="1">\n{CANCEL}\n</document>\n'
            f'<document id="2">\n{BAGS}\n</document>\n</documents>\n\n{QUESTION}'
        )
    ]


def test_the_best_text_stays_even_where_it_does_not_fit() -> None:
    decision = decided(tagged(POOL, CANCEL, BAGS), 15)
    assert decision.action == "refuse"
    assert "without all retrieved texts but the best" in decision.reason
    assert decided(tagged(CANCEL), 15).action == "refuse"


def test_the_parameter_documents_counts_and_is_ranked() -> None:
    documents = [{"title": "酒店", "text": POOL}, {"text": CANCEL}, BAGS, 7]
    request = chat([user(QUESTION)], parameters={"documents": documents, "seed": 1})
    decision = decided(request, 80)
    assert decision.request is not None
    assert decision.request.parameters == {"documents": [{"text": CANCEL}], "seed": 1}
    assert request.parameters["documents"] == documents


def test_paragraphs_of_a_single_container_are_texts() -> None:
    text = f"<context>\n{POOL}\n\n{CANCEL}\n\n{BAGS}\n</context>\n{QUESTION}"
    decision = decided(chat([user(text)]), request_tokens(chat([user(text)])) - 40)
    assert decision.request is not None
    left = decision.request.messages[0]["content"]
    assert CANCEL in left
    assert POOL not in left
    assert left.startswith("<context>\n")
    assert left.endswith(f"\n</context>\n{QUESTION}")


def test_elements_within_a_container_are_texts() -> None:
    inner = "".join(f"<chunk>{text}</chunk>" for text in (POOL, CANCEL))
    request = chat([user(f"<context>{inner}</context>{QUESTION}")])
    decision = decided(request, request_tokens(request) - 5)
    assert decision.request == chat([user(f"<context><chunk>{CANCEL}</chunk></context>{QUESTION}")])


def test_texts_may_stand_in_parts_results_and_system_messages() -> None:
    parts = [{"type": "image_url"}, {"type": "text", "text": f"<doc>{POOL}</doc>"}]
    messages: list[Message] = [
        {"role": "system", "content": f"规则。<doc>{BAGS}</doc><doc>{POOL}</doc>"},
        {"role": "user", "content": [*parts, {"type": "text", "text": QUESTION}]},
        {"role": "tool", "tool_call_id": "a", "content": f"<doc>{CANCEL}</doc><doc/>"},
    ]
    request = chat(messages)
    decision = decided(request, request_tokens(request) - 60)
    assert decision.request is not None
    made = decision.request.messages
    assert made[0]["content"].startswith("规则。")
    assert made[2] == messages[2]
    assert len(made[1]["content"]) == 3
    assert made[1]["content"][2]["text"] == QUESTION


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": f"<doc>{POOL}</doc><doc>{BAGS}</doc>"},
        {"role": "tool", "tool_call_id": "a", "content": f'["<doc>{POOL}</doc><doc>", "</doc>"]'},
        user(f"<doc>{POOL}</doc><doc>{BAGS}</doc>", metadata={"pin": True}),
        user(f"<doc>{POOL}<doc>{BAGS}"),
        user(f"```\n{POOL}\n\n{BAGS}\n```"),
    ],
)
def test_what_is_no_retrieved_text_is_left_alone(message: Message) -> None:
    request = chat([message, user(QUESTION)])
    assert decided(request, request_tokens(request) - 1).action == "refuse"


def test_a_completions_prompt_is_counted_and_never_cut() -> None:
    request = Request("completions", "m", prompts=["从前有座山", [1, 2, 3]])
    assert decided(request, request_tokens(request)).action == "keep"
    assert decided(request, request_tokens(request) - 1).action == "refuse"


TEXTS = st.sampled_from([POOL, CANCEL, BAGS, "visa", "签证 3.14", "```\ncode\n```", ""])


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Conversations, some of whose messages hold retrieved texts, and the parameter."""
    messages = draw(conversations())
    for place, message in enumerate(messages):
        if message["role"] in ("user", "tool") and draw(st.booleans()):
            # One alone would be a container, and what goes are its paragraphs.
            texts = draw(st.lists(TEXTS, min_size=2, max_size=4))
            found = "".join(f"<doc>{t}</doc>\n" for t in texts)
            messages[place] = {**message, "content": found + str(message["content"])}
    documents: list[Any] = draw(st.lists(TEXTS, max_size=4))
    return chat(messages, parameters={"documents": documents} if documents else {})


@settings(max_examples=100, deadline=None)
@given(requests(), st.integers(1, 2000))
def test_never_more_than_the_limit_and_never_the_last_text(request: Request, limit: int) -> None:
    decision = decided(request, limit)
    tokens = request_tokens(request)
    assert decision.reason.isascii()
    assert decision == decided(request, limit)
    if decision.action == "keep":
        assert tokens <= limit
        return
    assert tokens > limit
    if (made := decision.request) is None:
        return
    assert request_tokens(made) <= limit
    before, after = _texts(request), _texts(made)
    assert 0 < len(after) < len(before)
    # What is left is in its order, and nothing else has changed.
    rest = iter(before)
    assert all(text in rest for text in after)
    assert _outside(made) == _outside(request)
    assert InputPolicy(limit).decide(made, CONTEXT).action == "keep"


def _texts(request: Request) -> list[str]:
    inline = [
        text.split("</doc>")[0]
        for message in request.messages
        if message["role"] != "assistant" and "metadata" not in message
        for text in str(message["content"]).split("<doc>")[1:]
    ]
    return inline + list(request.parameters.get("documents", ()))


def _outside(request: Request) -> list[tuple[str, str]]:
    told = []
    for message in request.messages:
        text = str(message["content"])
        pieces = text.replace("\n", "").split("<doc>")
        told.append((message["name"], "".join(piece.split("</doc>")[-1] for piece in pieces)))
    return told


@settings(max_examples=50, deadline=None)
@given(requests(), st.integers(1, 2000))
def test_the_limit_holds_in_the_control_arm_and_nothing_is_left_out(
    request: Request, limit: int
) -> None:
    decision = InputPolicy(limit, is_ranked=True).control(request, CONTEXT)
    assert decision.request is None
    assert decision.action == ("keep" if request_tokens(request) <= limit else "refuse")


def test_tags_by_the_thousand_take_no_time() -> None:
    for text in ("<doc>" * 50_000, "<doc " * 50_000, "<doc></doc>" * 20_000):
        assert decided(chat([user(text)]), 9).action in ("refuse", "rewrite")


def test_texts_in_thousands_of_messages_take_no_time() -> None:
    text = "".join(f"<doc>text {i}</doc>" for i in range(20))
    request = chat([*(user(text) for _ in range(3000)), user("What is a text?")])
    begun_s = time.thread_time()
    assert decided(request, 100_000).action == "rewrite"
    assert time.thread_time() - begun_s < 4
