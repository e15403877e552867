"""Which models can take a request at all."""

from __future__ import annotations

from typing import Any

import pytest

from engine.protocol.errors import InvalidRequest
from gateway.backends.base import Backend
from gateway.backends.scripted import ScriptedBackend
from gateway.candidates import estimated_tokens, fitting
from gateway.config import Config, ModelConfig
from policies.request import Request

CONFIG = Config(
    models={
        "large": ModelConfig(openai="http://x/v1", max_model_len=32_000),
        "small": ModelConfig(openai="http://x/v1", max_model_len=2_000),
        "unknown": ModelConfig(openai="http://x/v1"),
        "ours": ModelConfig(gguf="x"),
    }
)


def backends(*seeing: str) -> dict[str, Backend]:
    return {
        name: ScriptedBackend(name, {"steps": [], "images": name in seeing})
        for name in CONFIG.models
    }


def chat(content: Any, max_tokens: int | None = None) -> Request:
    messages = [{"role": "user", "content": content}]
    return Request(surface="chat", model="m", messages=messages, max_tokens=max_tokens)


def test_a_fallback_that_is_too_small_is_left_out() -> None:
    """B23: about 3,000 tokens do not go to a window of 2,000."""
    names = ["large", "small", "unknown", "ours"]
    long = chat("four " * 2400)
    assert fitting(long, names, backends(), CONFIG) == ["large", "unknown", "ours"]
    assert fitting(chat("hi"), names, backends(), CONFIG) == names
    assert fitting(chat("hi", 3000), names, backends(), CONFIG) == ["large", "unknown", "ours"]
    assert fitting(chat("hi", 5000), names, backends(), CONFIG) == ["large", "unknown"]


def test_the_first_is_asked_whatever_its_window() -> None:
    assert fitting(chat("x" * 90_000), ["small", "large"], backends(), CONFIG)[0] == "small"


def test_images_go_to_who_sees() -> None:
    image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    names = ["small", "large"]
    assert fitting(chat(image), names, backends("large"), CONFIG) == ["large"]
    with pytest.raises(InvalidRequest) as caught:
        fitting(chat(image), names, backends(), CONFIG)
    assert caught.value.param == "messages[0].content[0]"


def test_the_longest_prompt_counts_not_all_of_them() -> None:
    request = Request(surface="completions", model="m", prompts=["x" * 400, [1] * 50], max_tokens=9)
    assert 100 <= estimated_tokens(request) - 9 <= 101
