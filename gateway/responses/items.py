"""Input and output items of the Responses API, as the turns of a chat.

One list of items always makes the same messages, so that a conversation which goes on begins with
the very bytes that were sent before, and an engine finds its prefix again. What a model thinks
goes back to it with the turn that it led to, as `reasoning_content`, which who knows no such field
ignores.
"""

from __future__ import annotations

from typing import Any

from engine.protocol.errors import InvalidRequest
from engine.protocol.fields import (
    anything_object,
    check_known,
    filled_string,
    list_of,
    object_of,
    one_of,
    refuse,
    string,
)

Item = dict[str, Any]

_PARTS: dict[str, str] = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
    "input_image": "image_url",
}
"""What a part is called, and the field that holds what it says."""

_role = one_of("user", "assistant", "system", "developer")
_reasoning = object_of(
    {}, {"summary": list_of(anything_object), "content": list_of(anything_object)}
)


def check_input(value: Any, path: str) -> None:
    """`input`: a text, or items. Raises `InvalidRequest`, which names what is wrong."""
    if type(value) is str:
        return
    if type(value) is not list:
        raise refuse(path, "a string or an array of items", value)
    list_of(_item, at_least=1)(value, path)


def _item(value: Any, path: str) -> None:
    anything_object(value, path)
    kind = "message" if value.get("type") is None else value["type"]
    if type(kind) is not str or kind not in _CHECKS:
        filled_string(kind, f"{path}.type")
        raise InvalidRequest(
            f"{path}: items of type {kind[:32]!r} are not supported here. There are "
            f"{', '.join(_CHECKS)}.",
            param=f"{path}.type",
        )
    _CHECKS[kind](value, path)


def _message(value: Item, path: str) -> None:
    _role(value.get("role"), f"{path}.role")
    _content(value.get("content"), f"{path}.content")


def _content(value: Any, path: str) -> None:
    if type(value) is list:
        list_of(_part, at_least=1)(value, path)
    elif type(value) is not str:
        raise refuse(path, "a string or an array of parts", value)


def _part(value: Any, path: str) -> None:
    anything_object(value, path)
    kind = value.get("type")
    filled_string(kind, f"{path}.type")
    if kind not in _PARTS:
        raise InvalidRequest(
            f"{path}: parts of type {kind[:32]!r} are not supported here. There are "
            f"{', '.join(_PARTS)}.",
            param=f"{path}.type",
        )
    string(value.get(_PARTS[kind]), f"{path}.{_PARTS[kind]}")


def _call(value: Item, path: str) -> None:
    for name in ("call_id", "name"):
        filled_string(value.get(name), f"{path}.{name}")
    string(value.get("arguments"), f"{path}.arguments")


def _call_output(value: Item, path: str) -> None:
    filled_string(value.get("call_id"), f"{path}.call_id")
    _content(value.get("output"), f"{path}.output")


def _thought(value: Item, path: str) -> None:
    _reasoning(value, path)
    for name in ("summary", "content"):
        for index, part in enumerate(value.get(name) or ()):
            check_known(part, {"text": string}, f"{path}.{name}[{index}].")


_CHECKS = {
    "message": _message,
    "function_call": _call,
    "function_call_output": _call_output,
    "reasoning": _thought,
}


def items_of(given: str | list[Item], call_id: str) -> list[Item]:
    """A checked `input` as items that have a type and an id each."""
    if isinstance(given, str):
        given = [{"role": "user", "content": [{"type": "input_text", "text": given}]}]
    return [
        {"type": "message", "id": f"item_{call_id}_{place}"}
        | {name: value for name, value in item.items() if value is not None}
        for place, item in enumerate(given)
    ]


def messages_of(items: list[Item]) -> list[dict[str, Any]]:
    """Checked items as chat messages. A turn of the assistant is one message: what it thought,
    what it said, and the calls that follow."""
    messages: list[dict[str, Any]] = []
    turn: dict[str, Any] | None = None
    thought = ""
    for item in items:
        kind = item["type"]
        if kind == "reasoning":
            thought += _text_of_thought(item)
            turn = None
        elif kind == "function_call":
            if turn is None:
                turn = _turn(thought, None)
                messages.append(turn)
                thought = ""
            turn.setdefault("tool_calls", []).append(_tool_call(item))
        elif kind == "message" and item["role"] == "assistant":
            turn = _turn(thought, item["content"])
            messages.append(turn)
            thought = ""
        else:
            turn, thought = None, ""
            messages.append(_other(item))
    return messages


def _turn(thought: str, content: str | list[Any] | None) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": "assistant"}
    if thought:
        turn["reasoning_content"] = thought
    turn["content"] = None if content is None else _chat_content(content)
    return turn


def _other(item: Item) -> dict[str, Any]:
    if item["type"] == "function_call_output":
        content = _chat_content(item["output"])
        return {"role": "tool", "tool_call_id": item["call_id"], "content": content}
    return {"role": item["role"], "content": _chat_content(item["content"])}


def _tool_call(item: Item) -> dict[str, Any]:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def _chat_content(content: str | list[Any]) -> str | list[dict[str, Any]]:
    """A single text as a text: not every server takes parts."""
    if isinstance(content, str):
        return content
    parts = [_chat_part(part) for part in content]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return parts


def _chat_part(part: dict[str, Any]) -> dict[str, Any]:
    name = _PARTS[part["type"]]
    if name != "image_url":
        return {"type": name, name: part[name]}
    image = {"url": part["image_url"]}
    if isinstance(part.get("detail"), str):
        image["detail"] = part["detail"]
    return {"type": "image_url", "image_url": image}


def _text_of_thought(item: Item) -> str:
    """What was thought, or, where only that is there, its summary."""
    parts = item.get("content") or item.get("summary") or ()
    return "".join(part.get("text") or "" for part in parts)
