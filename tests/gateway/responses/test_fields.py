"""Bodies of `/v1/responses`: what they mean as a chat, and what is refused, by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol.errors import InvalidRequest
from engine.protocol.openai import parse_chat
from gateway.responses.asked import Asked
from gateway.responses.fields import RESPONSES, chat_fields, parse

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
SCHEMA = {"type": "object", "properties": {"名": {"type": "string"}}}


def parsed(**fields: Any) -> dict[str, Any]:
    return parse(json.dumps({"input": "Hi"} | fields).encode())


def chat(**fields: Any) -> dict[str, Any]:
    return chat_fields(parsed(**fields), [{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize(
    ("fields", "meant"),
    [
        ({"max_output_tokens": 5}, {"max_output_tokens": 5}),
        (
            {"temperature": 0.5, "top_p": 0.9, "top_k": 3},
            {"temperature": 0.5, "top_p": 0.9, "top_k": 3},
        ),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, {"verbosity": "low"}),
        (
            {"text": {"format": {"type": "json_object"}}},
            {"response_format": {"type": "json_object"}},
        ),
        (
            {
                "text": {
                    "format": {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}
                }
            },
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": SCHEMA, "strict": True},
                }
            },
        ),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
        (
            {"include": ["message.output_text.logprobs", "reasoning.encrypted_content"]},
            {"logprobs": True, "top_logprobs": 0},
        ),
        ({"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}, {}),
        ({"store": True, "metadata": {"a": "b"}, "truncation": "auto", "client_metadata": {}}, {}),
        ({"temperature": None, "previous_response_id": None, "text": {"format": None}}, {}),
        ({"background": False, "conversation": None, "stream_options": {}}, {}),
        (
            {"user": "u", "service_tier": "auto", "stream": True},
            {"user": "u", "service_tier": "auto", "stream": True},
        ),
    ],
)
def test_what_it_means_as_a_chat(fields: dict[str, Any], meant: dict[str, Any]) -> None:
    assert chat(**fields) == {"messages": [{"role": "user", "content": "Hi"}]} | meant


def test_instructions_come_first_and_empty_ones_do_not() -> None:
    assert chat(instructions="简短")["messages"][0] == {"role": "system", "content": "简短"}
    assert len(chat(instructions="")["messages"]) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            "input[0].content[0].type",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input[0].content[0].text",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].image_url",
        ),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
        ({"input": [{"type": 7}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        (
            {"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]},
            "input[0].call_id",
        ),
        (
            {"input": [{"type": "function_call", "name": "f", "call_id": "c", "arguments": {}}]},
            "input[0].arguments",
        ),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"input": [{"type": "reasoning", "summary": [{"text": 5}]}]}, "input[0].summary[0].text"),
        ({"model": ""}, "model"),
        ({"instructions": ["x"]}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"stream": "yes"}, "stream"),
        ({"store": 1}, "store"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"previous_response_id": 7}, "previous_response_id"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "custom", "name": "f"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"reasoning": {"effort": 5}}, "reasoning.effort"),
        ({"top_logprobs": 99}, "top_logprobs"),
        ({"truncation": "most"}, "truncation"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed(**fields)
    assert caught.value.param == param


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
_kinds = ["message", "reasoning", "function_call", "function_call_output"]
_items = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(_kinds) | _json,
            "role": st.sampled_from(["user", "assistant"]),
            "content": st.text(max_size=4) | _json,
            "summary": _json,
            "call_id": st.just("c") | _json,
            "name": st.just("f"),
            "arguments": st.just("{}"),
            "output": st.text(max_size=4) | _json,
        },
    ),
    max_size=4,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(RESPONSES)), _json, max_size=4), _items | _json)
def test_any_body_is_a_valid_chat_or_refused(fields: dict[str, Any], input: Any) -> None:
    body = json.dumps(fields | {"input": input}).encode("utf-8", "surrogatepass")
    try:
        checked = parse(body)
        asked = Asked.of(checked, "1", [])
        request = asked.request
    except InvalidRequest:
        return
    asked.described("resp_1", "m")
    sent = chat_fields(checked, []) | {"messages": request.messages}
    assert parse_chat(json.dumps(sent).encode())["messages"] == sent["messages"]
