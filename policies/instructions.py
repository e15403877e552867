"""Instructions of a route's own, where the system message ends.

The place follows from what stands before the user's first message alone: it is the same in every
turn, so that each prompt goes on beginning with the one before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.turns import Message

_ROLES = ("system", "developer")


def with_instruction(messages: Sequence[Message], text: str) -> list[Message]:
    """`text` at the end of the first system or developer message that stands before the user
    speaks; where there is none, a system message in front holds it."""
    for place, message in enumerate(messages):
        if message.get("role") in _ROLES:
            return [*messages[:place], _extended(message, text), *messages[place + 1 :]]
        if message.get("role") == "user":
            break
    return [{"role": "system", "content": text}, *messages]


def _extended(message: Message, text: str) -> Message:
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [*content, {"type": "text", "text": text}]}
    return {**message, "content": f"{content}\n\n{text}" if content else text}
