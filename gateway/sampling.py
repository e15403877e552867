"""How tokens are chosen where the client does not say: as the model's makers recommend.

At OpenAI's default, a temperature of 1, a small model talks nonsense, and no chat client sends
one. Like vLLM's generation config, each parameter that a request leaves out is taken from the
configuration. It is filled in before any policy, so that what is decided, cached and compared is
the request as it will be answered.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from gateway.config import Config, ModelConfig, SamplingConfig
from gateway.routes import Route
from policies.request import Request


class SamplingDefaults:
    """What one request leaves open, for each model that may answer it. A route's word goes
    before its model's."""

    def __init__(self, config: Config, route: Route, request: Request) -> None:
        said = request.parameters
        self._by_model = {
            model: {
                name: value
                for name, value in recommended(config.models[model], route).items()
                if name not in said
            }
            for model in route.models
        }
        self._first = self._by_model[route.candidates[0]]

    def fill(self, request: Request) -> Request:
        """With what the route's first model recommends."""
        if not self._first:
            return request
        return replace(request, parameters=self._first | request.parameters)

    def fit(self, request: Request, model: str) -> Request:
        """`request`, filled before, for another of the models: as that one recommends.

        What policies have set since then stays.
        """
        own = self._by_model[model]
        if own == self._first:
            return request
        kept = {
            name: value
            for name, value in request.parameters.items()
            if name not in self._first or value != self._first[name]
        }
        return replace(request, parameters=own | kept)


def recommended(model: ModelConfig, route: Route) -> dict[str, Any]:
    """What this model is asked with on this route where the client does not say."""
    return _given(model.sampling) | _given(route.config.sampling)


def _given(sampling: SamplingConfig | None) -> dict[str, Any]:
    return sampling.given() if sampling is not None else {}
