"""Checks for one field of a body: what type it has, and how the refusal is worded.

A check takes the value and its path (`messages[2].content`) and raises `InvalidRequest` whose
`param` is that path. Values are never converted: what passes is forwarded as it came.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.protocol.errors import InvalidRequest

Check = Callable[[Any, str], None]

MAX_INT = 2**31 - 1
"""Upper bound of counts: what every array of the engine and of its peers can hold."""


def refuse(path: str, must: str, value: Any = None) -> InvalidRequest:
    """The refusal of `path`; `value` is named by its JSON type, never echoed at length."""
    found = "" if value is None else f", not {kind_of(value)}"
    return InvalidRequest(f"{path} must be {must}{found}.", param=path)


def kind_of(value: Any) -> str:
    """The JSON type of `value`, with its article."""
    if value is None:
        return "null"
    return _KINDS.get(type(value), "something else")


_KINDS: dict[type, str] = {
    bool: "a boolean", int: "an integer", float: "a number", str: "a string",
    list: "an array", dict: "an object",
}  # fmt: skip


def string(value: Any, path: str) -> None:
    if type(value) is not str:
        raise refuse(path, "a string", value)


def filled_string(value: Any, path: str) -> None:
    string(value, path)
    if not value:
        raise refuse(path, "a string that is not empty")


def boolean(value: Any, path: str) -> None:
    if type(value) is not bool:
        raise refuse(path, "true or false", value)


def number(value: Any, path: str) -> None:
    if type(value) not in (int, float):
        raise refuse(path, "a number", value)


def anything_object(value: Any, path: str) -> None:
    if type(value) is not dict:
        raise refuse(path, "an object", value)


def integer(low: int, high: int = MAX_INT) -> Check:
    """An integer in [low, high]; JSON's 5.0 is a number, not an integer."""

    def check(value: Any, path: str) -> None:
        # JSON readers make a float of an integer that has more than 64 bits.
        beyond = type(value) is float and abs(value) >= 2**63
        if type(value) is not int and not beyond:
            raise refuse(path, "an integer", value)
        if beyond or not low <= value <= high:
            raise InvalidRequest(
                f"{path} must be between {low} and {high}, not {value}.", param=path
            )

    return check


def one_of(*names: str) -> Check:
    def check(value: Any, path: str) -> None:
        if type(value) is not str or value not in names:
            raise InvalidRequest(f"{path} must be one of: {', '.join(names)}.", param=path)

    return check


def list_of(check_item: Check, *, at_least: int = 0) -> Check:
    def check(value: Any, path: str) -> None:
        if type(value) is not list:
            raise refuse(path, "an array", value)
        if len(value) < at_least:
            raise refuse(path, "an array that is not empty")
        for index, item in enumerate(value):
            check_item(item, f"{path}[{index}]")

    return check


def map_of(check_value: Check) -> Check:
    def check(value: Any, path: str) -> None:
        anything_object(value, path)
        for key, item in value.items():
            check_value(item, f"{path}.{key[:64]}")

    return check


def object_of(required: dict[str, Check], optional: dict[str, Check] | None = None) -> Check:
    """An object with these fields; others may be there, and null means that a field is not set."""
    both = required | (optional or {})

    def check(value: Any, path: str) -> None:
        anything_object(value, path)
        for name in required:
            if value.get(name) is None:
                raise InvalidRequest(f"{path}.{name} is missing.", param=f"{path}.{name}")
        check_known(value, both, f"{path}.")

    return check


def check_known(fields: dict[str, Any], checks: dict[str, Check], prefix: str = "") -> None:
    """Check every field that `checks` knows and that is set; unknown ones pass."""
    for name, value in fields.items():
        check = checks.get(name)
        if check is not None and value is not None:
            check(value, prefix + name)
