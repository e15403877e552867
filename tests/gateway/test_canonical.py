"""Checked bodies as the canonical request: what is taken, and what is only passed on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.protocol.openai import parse_chat, parse_completion
from gateway.backends.fields import to_fields
from gateway.canonical import canonical
from tests.fakes.serving import Serve

ODD: list[Any] = [5, "x", [3], {"a": 1}, True, 0.5]


def test_fields_of_the_other_surface_are_only_passed_on() -> None:
    body = {"prompt": "hi", "messages": 5, "tools": [3], "tool_choice": 0.5}
    request = canonical("completions", parse_completion(json.dumps(body).encode()))
    assert (request.messages, request.tools, request.tool_choice) == ([], None, None)
    assert to_fields(request) == body
    said = {"messages": [{"role": "user", "content": "hi"}], "prompt": {"a": 1}}
    asked = canonical("chat", parse_chat(json.dumps(said).encode()))
    assert asked.prompts == []
    assert to_fields(asked) == said


@pytest.mark.parametrize("name", ["messages", "tools", "tool_choice", "max_output_tokens"])
async def test_no_odd_field_of_a_completion_is_a_fault_of_ours(serve: Serve, name: str) -> None:
    gateway = await serve()
    for value in ODD:
        response = await gateway.client.post(
            "/v1/completions", json={"prompt": "hi", "max_tokens": 2, name: value}
        )
        assert response.status_code in (200, 400), (name, value, response.text)
