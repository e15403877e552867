"""OpenAI's chat messages, in the plain form that chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from engine.protocol.errors import InvalidRequest

_TEXT_PARTS = {"text": "text", "refusal": "refusal"}
_JOIN = "\n"
"""Between text parts, as vLLM and llama.cpp join them: parts are paragraphs of their own."""


def plain_messages(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """New messages: content is one string, tool calls' arguments are objects, nulls are gone.

    Raises `InvalidRequest` naming the message and part, for what is not text above all.
    """
    if not messages:
        raise InvalidRequest("messages must not be empty.", param="messages")
    return [_plain(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _plain(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise InvalidRequest(f"{where} must be an object with a role.", param=where)
    plain = {key: value for key, value in message.items() if value is not None}
    plain["content"] = _content(message.get("content"), f"{where}.content")
    if isinstance(message.get("tool_calls"), list):
        plain["tool_calls"] = [_tool_call(call) for call in message["tool_calls"]]
    return plain


def _content(content: Any, where: str) -> str:
    if content is None:  # an assistant's message that is only tool calls
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"{where} must be a string or a list of parts.", param=where)
    return _JOIN.join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise InvalidRequest(f"{where} must be an object with a type.", param=where)
    if kind not in _TEXT_PARTS:
        raise InvalidRequest(
            f"{where} is of type {kind!r}: this model reads text only.", param=where
        )
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}.{_TEXT_PARTS[kind]} must be a string.", param=where)
    return text


def _tool_call(call: Any) -> Any:
    """Arguments arrive as a JSON text; templates print them as JSON, so they want the object."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call  # what the model once wrote, malformed or not, is shown to it again as it was
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}
