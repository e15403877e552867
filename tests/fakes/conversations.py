"""Conversations for the tests of what policies do to them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from policies.request import Request

Message = dict[str, Any]

WORDS = [
    "the flight is booked",
    "航班已经取消了",
    "予約を確認してください",
    "лететь завтра",
    "12,480",
]


def user(text: str, **fields: Any) -> Message:
    return {"role": "user", "content": text, **fields}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def said(text: str, **fields: Any) -> Message:
    return {"role": "assistant", "content": text, **fields}


def calls(*ids: str) -> Message:
    """An assistant's message that calls as many tools at once."""
    function = {"name": "look_up", "arguments": '{"id": "HAT136"}'}
    made = [{"id": id, "type": "function", "function": function} for id in ids]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result(id: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": id, "content": text}


def pinned(message: Message) -> Message:
    return {**message, "metadata": {"pin": True}}


def chat(messages: list[Message], **fields: Any) -> Request:
    return Request(surface="chat", model="chat", messages=messages, **fields)


@st.composite
def texts(draw: st.DrawFn) -> str:
    return " ".join([draw(st.sampled_from(WORDS))] * draw(st.integers(1, 30)))


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """As clients send them: openings, answers, several calls at once, pins, several languages.

    Each content is told apart by its place, and ids of calls are used again, as many tools do.
    """
    messages: list[Message] = [system(draw(texts()))] if draw(st.booleans()) else []
    if draw(st.booleans()):
        messages.append(said("How can I help?"))
    for _ in range(draw(st.integers(1, 8))):
        messages.append(user(draw(texts())))
        for _ in range(draw(st.integers(0, 4))):
            ids = [f"call_{i}" for i in range(draw(st.integers(1, 3)))]
            messages += [calls(*ids), *(result(id, draw(texts())) for id in ids)]
        if draw(st.booleans()):
            messages.append(said(draw(texts())))
        if draw(st.integers(0, 9)) == 0:
            messages.append({"role": "developer", "content": draw(texts())})
    marks = draw(st.lists(st.integers(0, 19), min_size=len(messages), max_size=len(messages)))
    return [
        pinned({**message, "name": f"at-{place}"})
        if mark == 0
        else {**message, "name": f"at-{place}"}
        for place, (message, mark) in enumerate(zip(messages, marks, strict=True))
    ]
