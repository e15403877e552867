"""Which route a name leads to."""

from __future__ import annotations

import pytest

from engine.protocol.errors import Forbidden, InvalidRequest, ModelNotFound
from gateway.config import BudgetConfig, Config, ModelConfig, RouteConfig
from gateway.routes import Routes
from gateway.tenants import OPEN, Tenant

GGUF = ModelConfig(gguf="x")
CONFIG = Config(
    models={
        "small": GGUF,
        "large": ModelConfig(gguf="y", fallback=("small", "reserve")),
        "reserve": GGUF,
        "spare": GGUF,
    },
    aliases={"gpt-4o-mini": "chat", "big": "large"},
    routes={
        "chat": RouteConfig("small", BudgetConfig(512)),
        "extract": RouteConfig("small", BudgetConfig(300)),
        "deep": RouteConfig("large"),
    },
    default_route="chat",
)


@pytest.mark.parametrize(
    ("model", "header", "route"),
    [
        ("chat", None, "chat"),
        ("extract", None, "extract"),
        ("gpt-4o-mini", None, "chat"),
        ("big", None, "deep"),
        ("small", None, "chat"),
        ("reserve", None, "deep"),
        ("spare", None, "spare"),
        ("", None, "chat"),
        ("chat", "extract", "extract"),
        ("gpt-unknown", "extract", "extract"),
        ("", "gpt-4o-mini", "chat"),
    ],
)
def test_names(model: str, header: str | None, route: str) -> None:
    assert Routes(CONFIG).match(model, header, OPEN).name == route


def test_naming_a_model_does_not_get_around_its_budget() -> None:
    assert Routes(CONFIG).match("small", None, OPEN).config.budget == BudgetConfig(512)


def test_candidates_are_the_model_and_its_fallbacks() -> None:
    routes = Routes(CONFIG)
    assert routes.match("deep", None, OPEN).candidates == ("large", "small", "reserve")
    assert routes.match("reserve", None, OPEN).candidates == ("reserve",)
    assert list(routes.by_name) == ["chat", "extract", "deep", "spare"]


def test_unknown_names() -> None:
    routes = Routes(CONFIG)
    with pytest.raises(ModelNotFound) as caught:
        routes.match("x" * 5000, None, OPEN)
    assert len(caught.value.message) < 300
    with pytest.raises(ModelNotFound, match="Known are: chat, extract, deep, gpt-4o-mini, big"):
        routes.match("chat", "nope", OPEN)


def test_a_key_is_held_to_its_routes() -> None:
    routes = Routes(CONFIG)
    tenant = Tenant("t", "salt", allowed_routes=frozenset({"extract"}))
    assert routes.match("extract", None, tenant).name == "extract"
    for name in ("chat", "gpt-4o-mini", "small", "spare", ""):
        with pytest.raises(Forbidden):
            routes.match(name, None, tenant)
    assert routes.public_names(tenant) == ["extract"]


def test_without_routes_every_model_is_one() -> None:
    routes = Routes(Config(models={"a": GGUF, "b": GGUF}, aliases={"c": "b"}))
    assert routes.public_names(OPEN) == ["a", "b", "c"]
    assert routes.match("c", None, OPEN).name == "b"
    with pytest.raises(InvalidRequest, match="model is missing"):
        routes.match("", None, OPEN)
    assert Routes(Config(models={"a": GGUF})).match("", None, OPEN).name == "a"
