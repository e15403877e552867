"""What a client asks of the Responses API: the canonical request, and what its answer repeats."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from engine.protocol.errors import InvalidRequest
from gateway.canonical import canonical
from gateway.responses.fields import chat_fields
from gateway.responses.items import Item, items_of, messages_of
from policies.request import Request


class Asked(msgspec.Struct, frozen=True):
    """One request.

    fields: of its body, checked
    turns:  what was said so far, in turns, the client's newest last. A turn is made into messages
            by itself, so that those of former ones stay as they were sent
    """

    fields: dict[str, Any]
    turns: list[list[Item]]

    @classmethod
    def of(cls, fields: dict[str, Any], call_id: str, former: list[list[Item]]) -> Asked:
        return cls(fields, [*former, items_of(fields["input"], call_id)])

    @property
    def request(self) -> Request:
        """Raises `InvalidRequest` where nothing is said in it."""
        messages = [message for turn in self.turns for message in messages_of(turn)]
        request = canonical("chat", chat_fields(self.fields, messages))
        if not request.messages:
            raise InvalidRequest("input leads to no message.", param="input")
        return request

    def described(self, id: str, model: str) -> dict[str, Any]:
        """The response object, but for what comes of the answer. model: as the answer names it"""
        fields = self.fields
        text, reasoning = fields.get("text", {}), fields.get("reasoning", {})
        return {
            "id": id,
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "background": False,
            "instructions": fields.get("instructions"),
            "max_output_tokens": fields.get("max_output_tokens"),
            "max_tool_calls": fields.get("max_tool_calls"),
            "metadata": fields.get("metadata", {}),
            "parallel_tool_calls": fields.get("parallel_tool_calls", True),
            "previous_response_id": fields.get("previous_response_id"),
            "reasoning": {name: reasoning.get(name) for name in ("effort", "summary")},
            "service_tier": fields.get("service_tier", "default"),
            "store": fields.get("store", True),
            "temperature": fields.get("temperature", 1.0),
            "text": {"format": {"type": "text"}} | _given(text),
            "tool_choice": fields.get("tool_choice", "auto"),
            "tools": [_tool(tool) for tool in fields.get("tools", ())],
            "top_logprobs": fields.get("top_logprobs", 0),
            "top_p": fields.get("top_p", 1.0),
            "truncation": fields.get("truncation", "disabled"),
        } | {name: fields[name] for name in ("user", "safety_identifier") if name in fields}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """With the fields that the format always has."""
    return {"parameters": None, "strict": None} | tool


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
