"""`/v1/models`."""

from __future__ import annotations

from gateway.config import BudgetConfig, Config, ModelConfig, RouteConfig
from tests.fakes.serving import Serve

CONFIG = Config(
    models={
        "small": ModelConfig(gguf="x"),
        "Qwen/Qwen3": ModelConfig(openai="http://127.0.0.1:1/v1", max_model_len=32768),
        "bare": ModelConfig(openai="http://127.0.0.1:1/v1"),
    },
    aliases={"gpt-4o-mini": "chat"},
    routes={
        "chat": RouteConfig("small", BudgetConfig(5)),
        "org/deep": RouteConfig("Qwen/Qwen3"),
        "plain": RouteConfig("bare"),
    },
)


async def test_routes_and_aliases_are_listed_with_every_backend_down(serve: Serve) -> None:
    gateway = await serve(CONFIG, {"steps": [], "ready": False})
    answer = (await gateway.client.get("/v1/models")).json()
    assert answer["object"] == "list"
    assert [item["id"] for item in answer["data"]] == ["chat", "org/deep", "plain", "gpt-4o-mini"]
    assert all(item["object"] == "model" and item["owned_by"] for item in answer["data"])
    assert [item.get("context_length") for item in answer["data"]] == [4096, 32768, None, 4096]


async def test_one_model(serve: Serve) -> None:
    gateway = await serve(CONFIG)
    assert (await gateway.client.get("/v1/models/org/deep")).json()["id"] == "org/deep"
    missing = await gateway.client.get("/v1/models/nope")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


async def test_head_has_no_body(serve: Serve) -> None:
    gateway = await serve(CONFIG)
    response = await gateway.client.head("/v1/models")
    assert (response.status_code, response.content) == (200, b"")
