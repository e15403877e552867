"""Is a question asked again? In any script, however it is spaced; not when it is another one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.repeats import LOOK_BACK, MOST_CHARACTERS, asks_again
from policies.request import Request


def again(*texts: Any, then: list[dict[str, Any]] | None = None) -> bool:
    """texts: of the user's messages, with an answer after each but the last."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be kind."}]
    for text in texts:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "Well."}]
    return asks_again(Request("chat", "chat", messages=messages[:-1] + (then or [])))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("What is the capital of Japan?", "what is the capital of japan"),
        ("What is the capital of Japan?", "So, what is the capital of Japan??"),
        ("日本的首都是哪里？", "日本的首都是 哪里"),
        ("What is the capital of Japan?", "What is the real capital of Japan?"),
        ("请问日本现在的首都是哪里？", "请问日本现在的首都是哪里呢"),
        ("How do I get 30 % off my order?", "how do I get ３０ % off my order"),
        ("Как отменить мой заказ номер 7?", "как отменить мой заказ номер 7"),
    ],
)
def test_nearly_the_same_is_asked_again(first: str, second: str) -> None:
    assert again(first, second)
    assert again(first, "Something else entirely, please.", second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("What is the capital of Japan?", "What is the capital of France?"),
        ("日本的首都是哪里？", "法国的首都是哪里？"),
        ("How much is 3000 dollars in euros?", "How much is 3001 dollars in euros?"),
        ("Continue", "continue"),
        ("继续", "继续"),
        ("How do I cancel a flight to Paris?", "How do I cancel a flight to Milan?"),
        ("Write a poem about the sea.", "Now write one about the sea and about the mountains."),
    ],
)
def test_another_question_is_not(first: str, second: str) -> None:
    assert not again(first, second)


def test_the_first_message_and_tool_rounds_are_no_repetition() -> None:
    question = "What is the weather in Tokyo today?"
    assert not again(question)
    calls: list[dict[str, Any]] = [
        {"role": "assistant", "tool_calls": []},
        {"role": "tool", "content": "Sunny"},
    ]
    assert not again(question, question, then=calls)


def test_long_texts_must_be_the_same() -> None:
    long = "A long report about many different things. " * (MOST_CHARACTERS // 30)
    assert again(long, long)
    assert not again(long, long + "!")


def test_only_the_latest_messages_are_compared() -> None:
    question = "What is the capital of Japan?"
    others = [f"Tell me something about number {i}." for i in range(LOOK_BACK)]
    assert not again(question, *others, question)
    assert again(question, *others[1:], question)


def test_what_is_typed_comes_after_what_is_attached() -> None:
    attached = {"type": "text", "text": "a document " * 20}
    first = [attached, {"type": "text", "text": "What does this text say about Japan?"}]
    second = [
        {"type": "text", "text": "what does this text say about japan"},
        {"type": "image_url"},
    ]
    assert again(first, second)
    assert not again([{"type": "image_url"}], [{"type": "image_url"}])
    assert not again(None, None)


@given(st.lists(st.text(), min_size=1, max_size=6))
def test_any_text_will_do(texts: list[str]) -> None:
    assert again(*texts) in (True, False)


@given(st.text(min_size=30, max_size=200, alphabet=st.characters(categories=["L"])))
def test_the_very_same_is_always_found(text: str) -> None:
    assert again(text, text)
