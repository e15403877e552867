"""A form under any of its names is one grammar in the frame."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.protocol.errors import InvalidRequest
from engine.protocol.frames import decode_to_engine, encode
from engine.protocol.grammar import Grammar, grammar_of
from engine.protocol.openai import generate_frame, parse_chat

ORDERED = {"properties": {"b": {}, "a": {}}, "type": "object"}
TEXT = '{"properties":{"b":{},"a":{}},"type":"object"}'


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Grammar("json_schema", '{"type":"object"}')),
        (
            {"response_format": {
                "type": "json_schema", "json_schema": {"name": "x", "schema": ORDERED},
            }},
            Grammar("json_schema", TEXT, "response_format.json_schema.schema"),
        ),
        ({"guided_json": ORDERED}, Grammar("json_schema", TEXT, "guided_json")),
        ({"guided_json": TEXT}, Grammar("json_schema", TEXT, "guided_json")),
        ({"guided_regex": "a+"}, Grammar("regex", "a+", "guided_regex")),
        ({"guided_grammar": "start: x"}, Grammar("lark", "start: x", "guided_grammar")),
        (
            {"structured_outputs": {"choice": ["是", 'a"b']}},
            Grammar("lark", 'start: "是" | "a\\"b"', "structured_outputs.choice"),
        ),
        (
            {"structured_outputs": {"json_object": True}},
            Grammar("json_schema", '{"type":"object"}', "structured_outputs.json_object"),
        ),
        ({"structured_outputs": {"json_object": False}}, None),
    ],
)  # fmt: skip
def test_every_name_of_a_form(fields: dict[str, Any], grammar: Grammar | None) -> None:
    assert grammar_of(fields) == grammar


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "wibble"}}, "response_format.type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
    ],
)
def test_what_is_no_form_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        grammar_of(fields)
    assert refused.value.param == param


def test_the_frame_carries_it() -> None:
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": ORDERED}},
    }
    frame = generate_frame("chat", "r", parse_chat(json.dumps(body).encode()))
    assert frame.grammar is not None
    assert frame.grammar.text == TEXT
    assert decode_to_engine(encode(frame)) == frame
