"""The shape of chat messages and tools, as OpenAI defines it.

Roles are developer, system, user, assistant and tool; another one is refused, as OpenAI does
(vLLM passes it to the template). Unknown part types and unknown fields pass: an upstream may
know them.
"""

from __future__ import annotations

from typing import Any

from engine.protocol.errors import InvalidRequest
from engine.protocol.fields import (
    Check,
    anything_object,
    boolean,
    check_known,
    filled_string,
    list_of,
    object_of,
    one_of,
    refuse,
    string,
)

_role = one_of("developer", "system", "user", "assistant", "tool")

_PART_BODIES: dict[str, tuple[str, Check]] = {
    "text": ("text", string),
    "refusal": ("refusal", string),
    "image_url": ("image_url", object_of({"url": filled_string}, {"detail": string})),
    "input_audio": ("input_audio", object_of({"data": string, "format": string})),
    "file": ("file", anything_object),
}

_call_function = object_of({"name": filled_string, "arguments": string})


def _part(value: Any, path: str) -> None:
    anything_object(value, path)
    kind = value.get("type")
    filled_string(kind, f"{path}.type")
    if kind in _PART_BODIES:
        name, check = _PART_BODIES[kind]
        check(value.get(name), f"{path}.{name}")


def _content(value: Any, path: str) -> None:
    if type(value) is list:
        _parts(value, path)
    elif type(value) is not str:
        raise refuse(path, "a string or an array of parts", value)


_parts = list_of(_part, at_least=1)


def _tool_call(value: Any, path: str) -> None:
    anything_object(value, path)
    filled_string(value.get("id"), f"{path}.id")
    if value.get("type", "function") == "function":
        _call_function(value.get("function"), f"{path}.function")


_MESSAGE_FIELDS: dict[str, Check] = {
    "content": _content,
    "name": string,
    "refusal": string,
    "reasoning_content": string,
    "tool_calls": list_of(_tool_call),
    "tool_call_id": string,
    "function_call": anything_object,
}
_INSTEAD_OF_CONTENT = ("tool_calls", "function_call", "refusal", "audio")


def _message(value: Any, path: str) -> None:
    anything_object(value, path)
    role = value.get("role")
    _role(role, f"{path}.role")
    check_known(value, _MESSAGE_FIELDS, f"{path}.")
    if value.get("content") is None and not (
        role == "assistant" and any(value.get(name) for name in _INSTEAD_OF_CONTENT)
    ):
        raise InvalidRequest(
            f"{path}.content is missing; only an assistant's tool call or refusal can do without.",
            param=f"{path}.content",
        )
    if role == "tool":
        filled_string(value.get("tool_call_id"), f"{path}.tool_call_id")


messages: Check = list_of(_message, at_least=1)

_function = object_of(
    {"name": filled_string},
    {"description": string, "parameters": anything_object, "strict": boolean},
)


def _tool(value: Any, path: str) -> None:
    anything_object(value, path)
    kind = value.get("type")
    filled_string(kind, f"{path}.type")
    if kind == "function":
        _function(value.get("function"), f"{path}.function")


tools: Check = list_of(_tool)


def tool_choice(value: Any, path: str) -> None:
    if type(value) is str:
        one_of("none", "auto", "required")(value, path)
    elif type(value) is dict:
        filled_string(value.get("type"), f"{path}.type")
        if value["type"] == "function":
            object_of({"name": filled_string})(value.get("function"), f"{path}.function")
    else:
        raise refuse(path, "none, auto, required, or an object that names a function", value)


def check_tool_choice(fields: dict[str, Any]) -> None:
    """A choice needs tools to choose from, and a named function must be one of them."""
    choice = fields.get("tool_choice")
    offered = fields.get("tools") or []
    if choice is None or choice == "none":
        return
    if not offered:
        raise InvalidRequest("tool_choice needs tools to choose from.", param="tool_choice")
    if isinstance(choice, dict) and choice["type"] == "function":
        name = choice["function"]["name"]
        functions = [tool["function"] for tool in offered if tool["type"] == "function"]
        if all(function["name"] != name for function in functions):
            raise InvalidRequest(
                f"tool_choice names {name[:64]!r}, which is not one of the tools.",
                param="tool_choice",
            )


def drop_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    """`fields` without those that are null, at the top and inside messages.

    A null `content` stays: it is how an assistant turn that only calls tools is written.
    """
    kept = {name: value for name, value in fields.items() if value is not None}
    if isinstance(kept.get("messages"), list):
        kept["messages"] = [
            {
                name: value
                for name, value in message.items()
                if value is not None or name == "content"
            }
            if isinstance(message, dict)
            else message
            for message in kept["messages"]
        ]
    return kept
