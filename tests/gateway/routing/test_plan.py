"""Which models a routed request is put to."""

from __future__ import annotations

from typing import Any

import pytest

from engine.protocol.errors import InvalidRequest
from gateway.backends.base import Capabilities
from gateway.backends.scripted import ScriptedBackend
from gateway.config import CascadeConfig, Config, ModelConfig, RouteConfig, RoutingConfig
from gateway.routes import Routes
from gateway.routing.plan import Plan, plan_of
from gateway.routing.policy import routing_policy
from gateway.verdict import Verdict
from policies.base import Mode
from policies.decision import Decision, keep, route
from policies.request import Request

ASKED = Request("chat", "chat", [{"role": "user", "content": "字" * 400}], max_tokens=10)
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
ROUTING = RoutingConfig(weak="small", strong="large", cascade=CascadeConfig())


def model(window: int | None = None, *fallback: str) -> ModelConfig:
    return ModelConfig(openai="http://x/v1", max_model_len=window, fallback=fallback)


def plan(
    decision: Decision,
    request: Request = ASKED,
    *,
    mode: Mode = "active",
    obeyed: bool = True,
    small: int | None = None,
    images: tuple[str, ...] = (),
) -> Plan:
    models = {
        "own": model(None, "spare"),
        "small": model(small, "spare"),
        "large": model(),
        "spare": model(),
    }
    config = Config(models=models, routes={"chat": RouteConfig("own", route=ROUTING)})
    backends: dict[str, Any] = {name: ScriptedBackend(name, {"steps": []}) for name in models}
    for name in images:
        backends[name].capabilities = Capabilities(images=True)
    policy = routing_policy("own", ROUTING)
    applied = decision if obeyed else None
    verdict = Verdict(policy, decision, request, mode, applied=applied)
    return plan_of(request, Routes(config).by_name["chat"], [verdict], backends, config)


def test_the_chosen_model_comes_before_its_fallbacks_and_the_routes_own() -> None:
    assert plan(route(("large",), "")).names == ("large", "own", "spare")
    assert plan(route(("small",), "")).names == ("small", "spare", "own")


@pytest.mark.parametrize("decision", [keep(""), route(("large",), "")])
def test_what_is_not_obeyed_changes_nothing(decision: Decision) -> None:
    found = plan(decision, obeyed=False)
    assert (found.names, found.intended, found.terms) == (("own", "spare"), ("own",), None)


def test_a_cascade_has_a_beginning() -> None:
    found = plan(route(("small", "large"), ""))
    assert found.models == ("small", "large", "own", "spare")
    assert found.intended == ("small", "large")
    assert found.terms == {"tokens": 16, "min_margin": 0.5, "wait_ms": 2000}


def test_a_model_that_is_too_small_is_passed_over() -> None:
    assert plan(route(("small",), ""), small=100).names == ("spare", "own")
    assert plan(route(("small", "large"), ""), small=100).models == ("large", "own", "spare")
    assert plan(route(("small",), ""), small=1000).names[0] == "small"


def test_models_that_take_no_images_are_passed_over() -> None:
    request = Request("chat", "chat", [IMAGE])
    found = plan(route(("small", "large"), ""), request, images=("large", "own"))
    assert found.models == ("large", "own")
    with pytest.raises(InvalidRequest, match="reads text only"):
        plan(route(("small",), ""), request)
