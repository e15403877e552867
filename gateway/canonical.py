"""Checked OpenAI fields as the canonical request."""

from __future__ import annotations

from typing import Any

from engine.protocol.openai import output_budget, prompt_list
from policies.request import BUDGET_FIELDS, Request, Surface

_TAKEN = frozenset(
    {*BUDGET_FIELDS, "model", "messages", "prompt", "n", "tools", "tool_choice", "stream"}
    | {"stream_options"}
)


def canonical(surface: Surface, fields: dict[str, Any]) -> Request:
    """`fields` are what `parse_chat` or `parse_completion` returned."""
    return Request(
        surface=surface,
        model=fields.get("model", ""),
        messages=fields.get("messages", []),
        prompts=prompt_list(fields["prompt"]) if surface == "completions" else [],
        max_tokens=output_budget(fields),
        n=fields.get("n", 1),
        tools=fields.get("tools"),
        tool_choice=fields.get("tool_choice"),
        stream=fields.get("stream", False),
        include_usage=fields.get("stream_options", {}).get("include_usage") is True,
        parameters={name: value for name, value in fields.items() if name not in _TAKEN},
    )
