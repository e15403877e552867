"""What a model recommends, where the client says nothing."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gateway.backends.scripted import ScriptedBackend
from gateway.config import BudgetConfig, Config, ModelConfig, RouteConfig, SamplingConfig
from gateway.routes import Routes
from gateway.sampling import SamplingDefaults
from gateway.tenants import OPEN
from policies.request import Request
from tests.fakes.serving import HELLO, Gateway, Serve

COOL = SamplingConfig(temperature=0.2, top_p=0.9)
DOWN: dict[str, Any] = {"steps": [{"refuse": {"code": "unavailable"}}]}


def config_of(
    one: SamplingConfig | None = None,
    two: SamplingConfig | None = None,
    route: SamplingConfig | None = None,
) -> Config:
    """A route `chat` over `one`, which falls back to `two`."""
    upstream = ModelConfig(openai="http://127.0.0.1:1/v1")
    return Config(
        models={
            "one": replace(upstream, sampling=one, fallback=("two",)),
            "two": replace(upstream, sampling=two),
        },
        routes={"chat": RouteConfig("one", BudgetConfig(9), sampling=route)},
        default_route="chat",
    )


def sent(gateway: Gateway, model: str = "one") -> dict[str, Any]:
    """The parameters of the call that this model got."""
    backend = gateway.backends[model]
    assert isinstance(backend, ScriptedBackend)
    return backend.calls[-1].request.parameters


async def test_what_the_client_leaves_open_is_filled_in(serve: Serve) -> None:
    gateway = await serve(config_of(COOL), HELLO)
    await gateway.chat()
    assert sent(gateway) == {"temperature": 0.2, "top_p": 0.9}
    await gateway.chat(temperature=1, top_p=None, seed=3)
    assert sent(gateway) == {"temperature": 1, "top_p": 0.9, "seed": 3}
    await gateway.client.post("/v1/completions", json={"model": "chat", "prompt": "Once"})
    assert sent(gateway) == {"temperature": 0.2, "top_p": 0.9}


async def test_a_route_goes_before_its_model(serve: Serve) -> None:
    gateway = await serve(config_of(COOL, route=SamplingConfig(temperature=0, min_p=0.1)), HELLO)
    await gateway.chat()
    assert sent(gateway) == {"temperature": 0, "top_p": 0.9, "min_p": 0.1}
    await gateway.chat(model="two")
    assert sent(gateway, "two") == {"temperature": 0, "min_p": 0.1}


async def test_without_a_recommendation_requests_stay_as_they_are(serve: Serve) -> None:
    gateway = await serve(config_of(), HELLO)
    await gateway.chat()
    assert sent(gateway) == {}


async def test_it_is_no_policy(serve: Serve) -> None:
    gateway = await serve(config_of(COOL), HELLO)
    response = await gateway.chat()
    assert "temperature" not in response.headers["x-fewer-decisions"]


@pytest.mark.parametrize(
    ("two", "said", "expected"),
    [
        (None, {}, {}),
        (None, {"top_p": 0.5}, {"top_p": 0.5}),
        (SamplingConfig(top_k=40), {}, {"top_k": 40}),
        (SamplingConfig(temperature=0.7), {"temperature": 0}, {"temperature": 0}),
        (COOL, {}, {"temperature": 0.2, "top_p": 0.9}),
    ],
)
async def test_a_fallback_gets_its_own(
    serve: Serve, two: SamplingConfig | None, said: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Not every server knows the parameters that the first model's does."""
    config = config_of(COOL, two)
    backends = {"one": ScriptedBackend("one", DOWN), "two": ScriptedBackend("two", HELLO)}
    gateway = await serve(config, backends)
    assert (await gateway.chat(**said)).status_code == 200
    assert sent(gateway, "two") == expected


def test_what_a_policy_has_set_goes_to_the_fallback_too() -> None:
    config = config_of(COOL, SamplingConfig(temperature=0.7))
    route = Routes(config).match("chat", None, OPEN)
    request = Request("chat", "chat", parameters={"seed": 1})
    defaults = SamplingDefaults(config, route, request)
    filled = defaults.fill(request)
    assert filled.parameters == {"temperature": 0.2, "top_p": 0.9, "seed": 1}
    decided = replace(filled, parameters=filled.parameters | {"top_p": 0.1})
    assert defaults.fit(decided, "one") == decided
    assert defaults.fit(decided, "two").parameters == {"temperature": 0.7, "top_p": 0.1, "seed": 1}
