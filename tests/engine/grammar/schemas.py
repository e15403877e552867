"""Small schemas of every kind that answers are asked for in, and the grammars of them."""

from __future__ import annotations

import json
from typing import Any

from engine.protocol.grammar import Grammar

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "v": {"type": "integer"},
        "kids": {"type": "array", "items": {"$ref": "#"}},
    },
    "required": ["v"],
}
SCHEMAS: list[dict[str, Any]] = [
    {"type": "object"},
    {},
    PERSON,
    TREE,
    {"type": "array", "items": {"enum": ["alpha beta", "gamma", "三十"]}, "minItems": 3},
    {"type": "string", "pattern": "^[a-z]{3}-[0-9]{4}$"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "minLength": 40},
    {
        "type": "object",
        "properties": {
            "x": {"type": "number", "minimum": 100, "maximum": 200},
            "big": {"type": "array", "minItems": 30, "items": {"type": "boolean"}},
        },
        "required": ["x"],
        "additionalProperties": False,
    },
]


def of_schema(schema: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(schema))
