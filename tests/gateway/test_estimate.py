"""About how many tokens a request is."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.estimate import input_tokens, prompt_tokens
from policies.counting import IMAGE_TOKENS
from policies.request import Request


def chat(*contents: Any, **message: Any) -> Request:
    messages = [{"role": "user", "content": content, **message} for content in contents]
    return Request(surface="chat", model="m", messages=messages)


def test_chinese_is_not_underestimated() -> None:
    """A character is most of a token, not a quarter of one."""
    assert prompt_tokens(chat("大模型推理" * 100)) > 300


def test_all_messages_count() -> None:
    assert prompt_tokens(chat("x" * 40, None, "y")) == 11


def test_parts_count_by_what_they_are() -> None:
    """An image of megabytes is not a prompt of millions of tokens."""
    text, refusal = {"type": "text", "text": "x" * 40}, {"type": "refusal", "refusal": "x" * 40}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
    assert prompt_tokens(chat([text, refusal, image])) == 20 + IMAGE_TOKENS


def test_tools_and_their_calls_count() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "x" * 400}}
    assert prompt_tokens(chat(None, tool_calls=[call])) > 100
    tools = [{"type": "function", "function": {"name": "f", "description": "x" * 400}}]
    assert prompt_tokens(Request("chat", "m", tools=tools)) > 100


@pytest.mark.parametrize(
    ("prompts", "tokens"),
    [(["x" * 40], 10), (["x" * 40, [1, 2, 3]], 13), (["\ud800"], 1), ([""], 0)],
)
def test_every_prompt_counts(prompts: list[str | list[int]], tokens: int) -> None:
    assert prompt_tokens(Request("completions", "m", prompts=prompts)) == tokens


def test_lists_of_lists() -> None:
    assert input_tokens([[1, 2], [3], "x" * 8]) == 5
