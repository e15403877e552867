"""Checked OpenAI fields as the canonical request."""

from __future__ import annotations

from typing import Any

from engine.protocol.openai import output_budget, prompt_list
from policies.request import BUDGET_FIELDS, Request, Surface

_TAKEN = {*BUDGET_FIELDS, "soft_max_tokens", "model", "n", "stream", "stream_options"}
_TAKEN_BY: dict[Surface, frozenset[str]] = {
    "chat": frozenset(_TAKEN | {"messages", "tools", "tool_choice"}),
    "completions": frozenset(_TAKEN | {"prompt"}),
}
"""What becomes a field of its own. The other surface's are unknown here, and of any type."""


def canonical(surface: Surface, fields: dict[str, Any]) -> Request:
    """`fields` are what `parse_chat` or `parse_completion` returned."""
    taken = _TAKEN_BY[surface]
    in_chat = surface == "chat"
    return Request(
        surface=surface,
        model=fields.get("model", ""),
        messages=fields["messages"] if in_chat else [],
        prompts=[] if in_chat else prompt_list(fields["prompt"]),
        max_tokens=output_budget(fields),
        soft_max_tokens=fields.get("soft_max_tokens"),
        n=fields.get("n", 1),
        tools=fields.get("tools") if in_chat else None,
        tool_choice=fields.get("tool_choice") if in_chat else None,
        stream=fields.get("stream", False),
        include_usage=fields.get("stream_options", {}).get("include_usage") is True,
        parameters={name: value for name, value in fields.items() if name not in taken},
    )
