"""About how many tokens a text is, where nobody who could count them has done so."""

from __future__ import annotations

from typing import Any

import orjson

from policies.counting import IMAGE_TOKENS
from policies.request import Request

BYTES_PER_TOKEN = 4
"""English prose has 4 to 5 bytes for each token, Chinese 3 to 5, code 3 to 4."""


def prompt_tokens(request: Request) -> int:
    """Of everything that the request gives the model to read, all its prompts together."""
    return conversation_tokens(request) + sum(map(input_tokens, request.prompts))


def conversation_tokens(request: Request) -> int:
    """Of its messages and tools."""
    tools = json_tokens(request.tools) if request.tools else 0
    return tools + sum(map(message_tokens, request.messages))


def input_tokens(value: str | list[Any]) -> int:
    """Of a text, of token ids, or of a list of either."""
    if isinstance(value, str):
        return _tokens(len(value.encode("utf-8", "surrogatepass")))
    return sum(input_tokens(item) if isinstance(item, str | list) else 1 for item in value)


def message_tokens(message: dict[str, Any]) -> int:
    """Of one message, its tool calls included."""
    calls = message.get("tool_calls")
    content = message.get("content") or ()
    parts = input_tokens(content) if isinstance(content, str) else sum(map(_part_tokens, content))
    return parts + (json_tokens(calls) if calls else 0)


def _part_tokens(part: dict[str, Any]) -> int:
    """Of a part of a message; what is not text counts as an image does."""
    text = part.get(part.get("type", ""))
    return input_tokens(text) if isinstance(text, str) else IMAGE_TOKENS


def json_tokens(value: Any) -> int:
    """Of what a template writes out as JSON."""
    return _tokens(len(orjson.dumps(value)))


def _tokens(size_bytes: int) -> int:
    return -(-size_bytes // BYTES_PER_TOKEN)
