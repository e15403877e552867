from __future__ import annotations

import json
from typing import Any

import pytest

from engine.protocol.errors import InvalidRequest
from engine.text.messages import plain_messages


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert plain_messages([{"role": "user", "content": parts}]) == [
        {"role": "user", "content": "one\ntwo"}
    ]


def test_refusals_are_text() -> None:
    parts = [{"type": "refusal", "refusal": "no"}]
    assert plain_messages([{"role": "assistant", "content": parts}])[0]["content"] == "no"


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_other_parts_are_refused_by_name(kind: str) -> None:
    messages = [
        {"role": "system", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": kind}]},
    ]
    with pytest.raises(InvalidRequest, match=r"this model reads text only") as caught:
        plain_messages(messages)
    assert caught.value.param == "messages[1].content[1]"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "hi"}], "messages[0]"),
        ([{"role": 3, "content": "hi"}], "messages[0]"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": ["hi"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"text": "hi"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": ["x"]}]}], "messages[0].content[0]"),
    ],
)
def test_malformed_messages_are_named(messages: list[Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        plain_messages(messages)
    assert caught.value.param == param
    assert caught.value.message.endswith(".")


def test_a_message_that_is_only_tool_calls_has_empty_content() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None}
    plain = plain_messages([message])[0]
    assert plain["content"] == ""
    assert "refusal" not in plain
    assert plain["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert call["function"] == {"name": "f", "arguments": '{"a": 1}'}


@pytest.mark.parametrize("arguments", ["{", "[1]", "3", "[" * 100_000, ""])
def test_arguments_that_are_no_object_stay_as_they_are(arguments: str) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "tool_calls": [call, "odd", {"function": None}]}
    assert plain_messages([message])[0]["tool_calls"] == [call, "odd", {"function": None}]
    assert json.dumps(message)
