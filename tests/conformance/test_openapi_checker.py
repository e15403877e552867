"""The checker itself can fail: it accepts OpenAI's own examples and refuses broken ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.openapi import OpenApi

GOOD: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hi", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


@pytest.fixture
def openapi(shared_data: Callable[[str], Path]) -> OpenApi:
    return OpenApi(shared_data("openapi/openapi_chat_subset.json"))


def test_a_good_answer_conforms(openapi: OpenApi) -> None:
    assert openapi.faults("CreateChatCompletionResponse", GOOD) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("created",), "1"),
        (("created",), True),
        (("object",), "chat.completion.chunk"),
        (("choices",), None),
        (("choices", 0, "finish_reason"), "done"),
        (("choices", 0, "message", "content"), 5),
        (("choices", 0, "message", "role"), "user"),
        (("choices", 0, "logprobs"), {"content": [{"token": "x"}], "refusal": None}),
        (("usage", "prompt_tokens"), 1.5),
    ],
)
def test_a_broken_one_does_not(openapi: OpenApi, path: tuple[Any, ...], value: Any) -> None:
    broken = copy.deepcopy(GOOD)
    place: Any = broken
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert openapi.faults("CreateChatCompletionResponse", broken)
    del place[path[-1]]
    assert openapi.faults("CreateChatCompletionResponse", broken) or path == (
        "usage",
        "prompt_tokens",
    )
