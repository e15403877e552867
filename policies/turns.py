"""A conversation as units that are kept or left out whole.

A unit is a message of the user, an answer, or a call of tools with all of its results, however
many calls were made at once and wherever their results stand. System and developer messages and
pins are units that stay. A message is pinned by its own metadata: `"metadata": {"pin": true}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

Kind = Literal["fixed", "user", "assistant"]
Message = dict[str, Any]

PIN = "pin"
"""The key of a message's `metadata` that pins it, by the value true."""


class Turns(msgspec.Struct, frozen=True):
    """The units of a conversation, numbered as they begin.

    unit_of:  of each message, the number of its unit
    kinds:    of each unit. `user` and `assistant` say who began it, and that it may go; `fixed`
              units stay: system, developer, and what is pinned
    is_user:  of each unit, whether the user began it, fixed or not
    """

    unit_of: list[int]
    kinds: list[Kind]
    is_user: list[bool]


def turns_of(messages: Sequence[Message]) -> Turns:
    """Of messages in OpenAI form. What a unit is never depends on what comes after it has ended."""
    unit_of: list[int] = []
    kinds: list[Kind] = []
    is_user: list[bool] = []
    unit_of_call: dict[str, int] = {}
    last_user: int | None = None
    for message in messages:
        role = message.get("role")
        unit = _unit_of_result(message, unit_of_call, kinds) if role == "tool" else len(kinds)
        unit_of.append(unit)
        if unit == len(kinds):
            kinds.append(_kind(role))
            is_user.append(role == "user")
            last_user = unit if role == "user" else last_user
        for call in _calls(message):
            unit_of_call[call] = unit
        if is_pinned(message):
            kinds[unit] = "fixed"
            if not is_user[unit] and last_user is not None:
                # An answer without its question would be an answer to another one.
                kinds[last_user] = "fixed"
    return Turns(unit_of, kinds, is_user)


def is_pinned(message: Message) -> bool:
    metadata = message.get("metadata")
    return isinstance(metadata, dict) and metadata.get(PIN) is True


def text_of(message: Message) -> str:
    """All that is text of it, a line for each part."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))


def _unit_of_result(message: Message, unit_of_call: dict[str, int], kinds: Sequence[Kind]) -> int:
    """The unit of the call. A result of no call goes with what stands before it, if that can go."""
    call = message.get("tool_call_id")
    if isinstance(call, str) and call in unit_of_call:
        return unit_of_call[call]
    return len(kinds) - 1 if kinds and kinds[-1] != "fixed" else len(kinds)


def _kind(role: Any) -> Kind:
    if role in ("system", "developer"):
        return "fixed"
    return "user" if role == "user" else "assistant"


def _calls(message: Message) -> list[str]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return []
    ids = (call.get("id") for call in calls if isinstance(call, dict))
    return [id for id in ids if isinstance(id, str)]
