"""What a model's answers change with, besides the request."""

from __future__ import annotations

from typing import Any

from gateway.config import ModelConfig
from gateway.routes import Route
from gateway.sampling import recommended

LEFT_OUT = {
    "api_key": "says who asks, and not what",
    "api_key_file": "as `api_key`",
    "fallback": "those are in the key themselves; the answers of others than these are not kept",
    "price": "what it costs",
    "max_model_len": "what does not fit is refused, and the limit of what does is in the request",
    "timeout_s": "a late answer is none",
    "first_token_timeout_s": "as `timeout_s`",
    "max_concurrency": "who waits gets the same answer",
    "images": "says which model answers, and that is in the key",
}
"""Settings of a model that are in no key, and why."""


def identity(name: str, model: ModelConfig, route: Route) -> list[Any]:
    """Plain values: where its answers come from, not how we get there."""
    sources = (model.gguf, model.engine, model.openai, str(model.scripted))
    # The request has the first model's sampling in it; another that answers has its own.
    sampling = sorted(recommended(model, route).items())
    return [name, *sources, model.model, model.schemas, model.reasoning_field, sampling]
