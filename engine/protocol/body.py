"""Request bodies: JSON text in, one checked object out. Nothing a client sends gets past as a 500.

Stricter than RFC 8259 where two readers could disagree about what was sent: no duplicate
keys, no NaN, no lone surrogates, no byte order mark, no deep nesting.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from engine.protocol.errors import InvalidRequest

MAX_DEPTH = 64
"""Levels of nesting. JSON Schemas of real tools stay under 20; recursive readers die at 1,000."""

MAX_VALUES = 250_000
"""Values in the whole body, which bounds the checks' time: twice a 128k prompt of token ids."""

_MAX_DIAGNOSED_BYTES = 1024 * 1024
_STRING_AND_COLON = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"(\s*:)?', re.DOTALL)
"""Never goes back, or a text of escapes would take six times as long."""
_CONSTANTS = (b"NaN", b"Infinity")


def decode_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`. Raises `InvalidRequest`, naming the field at fault if one is."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _malformed(body, error) from None
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object.")
    keys = _count_keys(value)
    if keys != sum(map(bool, _STRING_AND_COLON.findall(body))):
        raise InvalidRequest(f"The body names the key {_duplicate(body)!r} twice in one object.")
    return value


def _count_keys(value: dict[str, Any]) -> int:
    """Keys of all objects inside `value`; raises when it is too deep or holds too much."""
    keys = values = 0
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        values += sum(map(len, level))
        if values > MAX_VALUES:
            raise InvalidRequest(f"The body holds more than {MAX_VALUES} values.")
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                keys += len(item)
                item = item.values()
            below += [child for child in item if isinstance(child, (dict, list))]
        if not below:
            return keys
        level = below
    raise InvalidRequest(f"The body nests deeper than {MAX_DEPTH} levels.")


def _malformed(body: bytes, error: orjson.JSONDecodeError) -> InvalidRequest:
    if not body.strip():
        return InvalidRequest("The body is empty; it must be a JSON object.")
    if len(body) <= _MAX_DIAGNOSED_BYTES and any(name in body for name in _CONSTANTS):
        field = _field_with_constant(body)
        if field is not None:
            return InvalidRequest(f"{field} holds NaN or Infinity, which JSON lacks.", param=field)
    return InvalidRequest(
        f"The body is not valid JSON; the fault is at line {error.lineno}, column {error.colno}."
    )


def _field_with_constant(body: bytes) -> str | None:
    """The top-level field that holds NaN or an infinity, as Python's own writer emits them."""
    try:
        whole = json.loads(body, parse_constant=float)
        fields = whole.items() if isinstance(whole, dict) else ()
        return next((name for name, value in fields if not _finite(value)), None)
    except (ValueError, RecursionError):
        return None


def _finite(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def _duplicate(body: bytes) -> str:
    found: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for key, _ in items:
            if key in seen:
                found.append(key)
            seen.add(key)

    json.loads(body, object_pairs_hook=pairs)
    return found[0][:64] if found else ""
