"""Answers of models that are set up otherwise are other answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.cache.identity import LEFT_OUT, identity
from gateway.config import ModelConfig, Price, RouteConfig, SamplingConfig, Secret
from gateway.routes import Route

ROUTE = Route("chat", RouteConfig("one"), ("one",))
BASE = ModelConfig()
CHANGES: dict[str, Any] = {
    "gguf": "smollm2-135m",
    "engine": "ws://127.0.0.1:1/v1/engine",
    "openai": "http://127.0.0.1:1/v1",
    "scripted": Path("script.json"),
    "model": "another",
    "api_key": Secret("secret"),
    "api_key_file": Path("key"),
    "fallback": ("two",),
    "price": Price(1.0, 2.0),
    "max_model_len": 512,
    "timeout_s": 1.0,
    "first_token_timeout_s": 1.0,
    "max_concurrency": 1,
    "images": "refused",
    "schemas": "refused",
    "reasoning_field": "thinking_token_budget",
    "sampling": SamplingConfig(top_k=1),
}
"""Another value of every setting of a model."""


def test_every_setting_has_another_value_here() -> None:
    """Whoever adds one decides here whether answers depend on it."""
    assert set(CHANGES) == set(ModelConfig.__struct_fields__)


@pytest.mark.parametrize("name", CHANGES)
def test_only_what_is_named_is_left_out(name: str) -> None:
    other = replace(BASE, **{name: CHANGES[name]})
    is_same = identity("one", other, ROUTE) == identity("one", BASE, ROUTE)
    assert is_same == (name in LEFT_OUT)


def test_the_name_and_the_routes_sampling_are_in_it() -> None:
    said = replace(ROUTE, config=RouteConfig("one", sampling=SamplingConfig(temperature=0.0)))
    assert identity("two", BASE, ROUTE) != identity("one", BASE, ROUTE)
    assert identity("one", BASE, said) != identity("one", BASE, ROUTE)
