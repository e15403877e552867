"""`/v1/chat/completions` and `/v1/completions`, streamed and whole, over real sockets."""

from __future__ import annotations

import json
from typing import Any

from tests.fakes.serving import Serve


def events_of(text: str) -> list[Any]:
    """Parsed data of an event stream; its strictness is the test."""
    assert text.endswith("\n\n")
    events = text[:-2].split("\n\n")
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    assert events[-1] == "data: [DONE]"
    return [json.loads(event[6:]) for event in events[:-1]]


async def test_a_whole_answer(serve: Serve) -> None:
    gateway = await serve()
    response = await gateway.chat()
    assert response.status_code == 200
    answer = response.json()
    assert answer["choices"][0]["message"]["content"] == "Hello"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 2
    assert answer["model"] == "chat"
    assert response.headers["x-fewer-route"] == "chat"
    assert response.headers["x-fewer-model"] == "one"
    assert response.headers["x-fewer-decisions"] == "[]"
    assert response.headers["x-request-id"]


async def test_a_streamed_answer(serve: Serve) -> None:
    gateway = await serve()
    response = await gateway.chat(stream=True)
    assert response.headers["content-type"] == "text/event-stream"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    chunks = events_of(response.text)
    assert [c["choices"][0]["delta"].get("content") for c in chunks] == ["", "Hel", "lo", None]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert all("usage" not in chunk for chunk in chunks)
