"""Answers that programs are to read, and whether they can."""

from __future__ import annotations

from typing import Any

import pytest

from engine.protocol.frames import Event, ToolDelta
from gateway import legibility
from gateway.legibility import Legibility
from policies.request import Request

JSON = {"response_format": {"type": "json_object"}}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def request(**fields: Any) -> Request:
    return Request("chat", "chat", messages=[{"role": "user", "content": "Hi"}], **fields)


def heard(asked: Request, *events: Event) -> bool:
    found = Legibility.of(asked)
    assert found is not None
    for event in events:
        found.feed([event])
    return found.failed


def text(*pieces: str, choice: int = 0) -> list[Event]:
    return [Event("id", choice, text=piece) for piece in pieces]


def call(*pieces: str, index: int = 0) -> list[Event]:
    return [Event("id", kind="tool", tool=ToolDelta(index, arguments=piece)) for piece in pieces]


@pytest.mark.parametrize(
    "parameters",
    [{}, {"response_format": {"type": "text"}}, {"response_format": "json_object"}],
)
def test_prose_is_not_looked_at(parameters: dict[str, Any]) -> None:
    assert Legibility.of(request(parameters=parameters)) is None


@pytest.mark.parametrize(
    "asked",
    [
        request(parameters=JSON),
        request(parameters={"response_format": {"type": "json_schema", "json_schema": {}}}),
        request(parameters={"guided_json": {"type": "object"}}),
        request(schema={"type": "object"}),
    ],
)
def test_json_must_parse(asked: Request) -> None:
    assert not heard(asked, *text('{"城市": ', '"东京"}'))
    assert heard(asked, *text('{"城市": ', '"东'))
    assert heard(asked, *text("```json\n{}\n```"))


def test_each_choice_by_itself() -> None:
    asked = request(parameters=JSON, n=2)
    assert not heard(asked, *text("[1", "]"), *text("{}", choice=1))
    assert heard(asked, *text("[1", "]"), *text("{", choice=1))


def test_arguments_of_tools_must_parse() -> None:
    asked = request(tools=TOOLS)
    assert not heard(asked, *call('{"a": ', "1}"), *call("", index=1))
    assert heard(asked, *call("{}"), *call('{"a": ', index=1))
    assert not heard(asked, *text("Prose is fine here."))


def test_a_choice_that_calls_a_tool_need_not_be_json_besides() -> None:
    assert not heard(request(parameters=JSON, tools=TOOLS), *text("Let me look."), *call("{}"))


def test_what_is_too_long_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legibility, "MAX_CHARS", 10)
    assert not heard(request(parameters=JSON), *text("{" * 11, "more"))
