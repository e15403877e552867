"""The canonical request as OpenAI body fields again, for whoever produces the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from policies.request import Request


def to_fields(
    request: Request, budget_field: str = "max_tokens", reasoning_field: str | None = None
) -> dict[str, Any]:
    """The body of `request` but for `model`, `stream` and `stream_options`.

    Fields that the client did not send stay away; the output budget, however many names it
    came under, goes out once, as `budget_field`, of what is thought and answered together. How much
    of it may be thought is told as `reasoning_field`: a name, or a path of names with points.
    """
    fields = dict(request.parameters)
    if request.surface == "chat":
        fields["messages"] = request.messages
    else:
        # A single text goes out as a text: not every server takes a list here.
        single = len(request.prompts) == 1
        fields["prompt"] = request.prompts[0] if single else request.prompts
    if request.max_tokens is not None:
        fields[budget_field] = request.most_tokens
    if request.reasoning_tokens is not None and reasoning_field is not None:
        _limit(fields, reasoning_field.split("."), request.reasoning_tokens)
    if request.n != 1:
        fields["n"] = request.n
    if request.tools is not None:
        fields["tools"] = request.tools
    if request.tool_choice is not None:
        fields["tool_choice"] = request.tool_choice
    if request.schema is not None:
        fields["response_format"] = _response_format(request.schema)
    return fields


def _limit(fields: dict[str, Any], path: Sequence[str], tokens: int) -> None:
    """Set the field at `path`; a lower limit of the client's own stays."""
    name, *rest = path
    given = fields.get(name)
    if rest:
        inner = fields[name] = dict(given) if isinstance(given, dict) else {}
        _limit(inner, rest, tokens)
    else:
        fields[name] = min(given, tokens) if type(given) is int and given >= 0 else tokens


def _response_format(schema: dict[str, Any]) -> dict[str, Any]:
    named = {"name": "answer", "strict": True, "schema": schema}
    return {"type": "json_schema", "json_schema": named}
