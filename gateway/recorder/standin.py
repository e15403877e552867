"""A request that weighs what a recorded one did, where no word of that one is known.

Policies that only count, look at roles and parameters, or ask whether two requests are the same,
decide about it as they would have about the real one. `policies.counting` gives a space a fifth of
a token, so a text of any weight can be made of them; what it was shows in a hash beside it.
"""

from __future__ import annotations

from typing import Any

from gateway.recorder.line import Line, Message, Part, Sizes
from policies.counting import MESSAGE_TOKENS, json_tokens
from policies.request import Request
from policies.turns import PIN

_SPACES_PER_TOKEN = 5
_FENCE = "```\n"
_FENCE_TOKENS = 2
"""Rounded up: what is pasted weighs up to a fifth of a token too much."""


def request_of(line: Line) -> Request:
    """The one that came, or one that stands for it."""
    if line.request is not None:
        return line.request
    sizes = line.sizes or Sizes()
    parameters = {name: _value(name, value, sizes) for name, value in sizes.parameters.items()}
    if sizes.prompts:
        parameters["prompt_hashes"] = [prompt.hash for prompt in sizes.prompts]
    return Request(
        surface=line.surface,
        model=line.asked,
        messages=[_message(message) for message in sizes.messages],
        prompts=[_text(prompt.tokens) for prompt in sizes.prompts],
        max_tokens=sizes.max_tokens,
        soft_max_tokens=sizes.soft_max_tokens,
        n=sizes.n,
        tools=_tools(sizes.tools) if sizes.tools else None,
        tool_choice=_tool_choice(sizes.tool_choice),
        schema={"title": sizes.schema.hash} if sizes.schema else None,
        stream=sizes.stream,
        include_usage=sizes.include_usage,
        parameters=parameters,
    )


def _message(message: Message) -> dict[str, Any]:
    # No count includes a message's name.
    made: dict[str, Any] = {"role": message.role, "name": message.hash}
    if message.calls:
        made["tool_calls"] = [{"id": call} for call in message.calls]
    if message.answers:
        made["tool_call_id"] = message.answers
    if message.pinned:
        made["metadata"] = {PIN: True}
    tokens = message.tokens - MESSAGE_TOKENS
    tokens -= json_tokens(made["tool_calls"]) if message.calls else 0
    if message.role == "user" and not message.typed:
        return {**made, "content": _FENCE + _text(tokens - _FENCE_TOKENS)}
    return {**made, "content": _text(tokens)}


def _tools(part: Part) -> list[dict[str, Any]]:
    function = {"name": part.hash, "description": ""}
    tools = [{"type": "function", "function": function}]
    function["description"] = _text(part.tokens - json_tokens(tools))
    return tools


def _value(name: str, value: bool | float | Part, sizes: Sizes) -> Any:
    if not isinstance(value, Part):
        return value
    if name == "response_format":
        return {"type": sizes.form, "hash": value.hash}
    bare = [value.hash, ""]
    return [value.hash, _text(value.tokens - json_tokens(bare))]


def _tool_choice(choice: str | None) -> str | dict[str, Any] | None:
    if choice == "named":
        return {"type": "function", "function": {"name": "named"}}
    return choice


def _text(tokens: int) -> str:
    return " " * (_SPACES_PER_TOKEN * max(tokens, 0))
