"""What can be honoured is compiled, and what cannot is refused by name; nothing takes long."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest

from engine.grammar.closing import Closer
from engine.grammar.compiled import MAX_DEPTH, MAX_TEXT_CHARS, compile_grammar
from engine.protocol.errors import InvalidRequest
from engine.protocol.grammar import Grammar
from tests.engine.grammar.schemas import PERSON, of_schema


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"not": {"type": "string"}}, "#/not"),
        ({"allOf": [{}, {"properties": {"x": {"not": {}}}}]}, "#/allOf/1/properties/x/not"),
        ({"type": "array", "uniqueItems": True}, "#/uniqueItems"),
        ({"if": {}, "then": {}}, "#/if, #/then"),
        ({"type": "array", "contains": {}, "minContains": 2}, "#/minContains"),
        ({"type": "wibble"}, "wibble"),
        ({"type": "string", "format": "wibble"}, "wibble"),
        ({"type": "string", "pattern": "([a-z"}, "unclosed"),
        ({"type": "string", "pattern": "(?<=x)y"}, "look-behind"),
        ({"type": "string", "x-guidance": {"lenient": True}}, "x-guidance"),
        ({"enum": []}, "Unsatisfiable"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "Unsatisfiable"),
        ({"$ref": "#"}, "cannot be honoured"),
        ({"$ref": "https://example.com/x.json"}, "https://example.com/x.json"),
        (False, "object"),
        ([], "object"),
        ("string", "object"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(
    schema: Any, words: str, byte_closer: Closer
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        compile_grammar(of_schema(schema), byte_closer)
    assert words in refused.value.message
    assert refused.value.param == "response_format"


def test_text_that_is_no_json_is_refused(byte_closer: Closer) -> None:
    with pytest.raises(InvalidRequest, match="not JSON"):
        compile_grammar(Grammar("json_schema", "{"), byte_closer)


@pytest.mark.parametrize(
    ("kind", "text"), [("regex", "("), ("regex", "(?=a)"), ("lark", "start: x"), ("lark", "wibble")]
)
def test_other_grammars_with_a_fault_are_refused(kind: Any, text: str, byte_closer: Closer) -> None:
    with pytest.raises(InvalidRequest, match="cannot be honoured"):
        compile_grammar(Grammar(kind, text), byte_closer)


def test_a_schema_without_an_end_is_refused(byte_closer: Closer) -> None:
    endless = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    with pytest.raises(InvalidRequest, match="no answer of up to"):
        compile_grammar(of_schema(endless), byte_closer)


def nested(keyword: str, levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {keyword: [{"type": "array", "items": schema}, {"additionalProperties": schema}]}
    return schema


HOSTILE: dict[str, Any] = {
    "oneOf": nested("oneOf", 10),
    "anyOf": nested("anyOf", 10),
    "allOf": nested("allOf", 10),
    "too deep": json.loads('{"items":' * (MAX_DEPTH + 1) + "{}" + "}" * (MAX_DEPTH + 1)),
    "properties": {"properties": {f"p{i}": {"type": "string"} for i in range(2000)}},
    "enum": {"enum": [f"value number {i}" for i in range(15_000)]},
    "items": {"type": "array", "maxItems": 1_000_000},
    "many items": {"type": "array", "minItems": 1_000_000, "items": {"type": "integer"}},
    "length": {"type": "string", "minLength": 0, "maxLength": 1_000_000},
    "repetition": {"type": "string", "pattern": "((((a{1,100}){1,100}){1,100}){1,100})"},
    "catastrophe": {"type": "string", "pattern": "^(a+)+$"},
    "references": {
        "$defs": {
            f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]}
            for i in range(40)
        }
        | {"d40": {"type": "integer"}},
        "$ref": "#/$defs/d0",
    },
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_compiled_or_refused_in_time(name: str, byte_closer: Closer) -> None:
    began_s = time.monotonic()
    try:
        compiled = compile_grammar(of_schema(HOSTILE[name]), byte_closer)
    except InvalidRequest:
        pass
    else:
        assert compiled.begin(4096).mask(np.empty(0, np.int32)) is not None
    assert time.monotonic() - began_s < 5


def test_a_text_over_the_limit_is_refused_unread(byte_closer: Closer) -> None:
    with pytest.raises(InvalidRequest, match=str(MAX_TEXT_CHARS)):
        compile_grammar(of_schema({"enum": ["a" * MAX_TEXT_CHARS]}), byte_closer)


def test_a_cap_below_the_minimum_is_refused(byte_closer: Closer) -> None:
    compiled = compile_grammar(of_schema(PERSON), byte_closer)
    shortest = len('{"name":"","age":0}')
    assert compiled.minimum_tokens == shortest
    compiled.check_cap(shortest)
    with pytest.raises(InvalidRequest, match=f"has {shortest} tokens") as refused:
        compiled.check_cap(shortest - 1)
    assert refused.value.param == "max_tokens"


def test_what_is_no_json_has_no_minimum(byte_closer: Closer) -> None:
    compiled = compile_grammar(Grammar("regex", "a{9}"), byte_closer)
    assert compiled.minimum_tokens is None
    compiled.check_cap(1)
