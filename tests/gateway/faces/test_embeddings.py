"""`/v1/embeddings`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from engine.protocol.errors import FewerError, Unavailable
from gateway.backends.base import Capabilities
from gateway.backends.scripted import ScriptedBackend
from gateway.config import Config, ModelConfig, RouteConfig
from tests.fakes.serving import Gateway, Serve, post, scripted_config, until

ANSWER = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
    "model": "upstream",
    "usage": {"prompt_tokens": 3, "total_tokens": 3},
}
BODY = {"model": "chat", "input": ["a", "b"], "dimensions": 5, "encoding_format": "float"}


class Embedding(ScriptedBackend):
    """Raises what it is given, or never answers; else `ANSWER`."""

    def __init__(self, name: str, error: FewerError | None = None, hang: bool = False) -> None:
        super().__init__(name, {"steps": [], "embedding": ANSWER})
        self.capabilities = Capabilities(embeddings=True)
        self.error = error
        self.hang = hang
        self.left = False

    async def embed(self, body: dict[str, Any]) -> dict[str, Any]:
        self.embeddings.append(body)
        if self.error is not None:
            raise self.error
        if self.hang:
            try:
                await asyncio.Event().wait()
            finally:
                self.left = True
        return ANSWER


async def test_the_body_is_passed_on_and_the_answer_back(serve: Serve) -> None:
    backend = Embedding("one")
    gateway = await serve(backends={"one": backend})
    response = await gateway.client.post("/v1/embeddings", json=BODY)
    assert response.status_code == 200
    assert response.json() == ANSWER
    assert response.headers["x-fewer-model"] == "one"
    assert list(backend.embeddings) == [BODY]


async def test_their_tokens_are_metered(serve: Serve) -> None:
    gateway = await serve(backends={"one": Embedding("one")})
    await gateway.client.post("/v1/embeddings", json=BODY)
    metrics = (await gateway.client.get("/metrics")).text
    assert 'fewer_prompt_tokens_total{model="one",route="chat"} 3.0' in metrics
    assert "fewer_usage_estimated_total 0.0" in metrics


@pytest.mark.parametrize(
    ("given", "tokens"),
    [("x" * 40, 10), (["x" * 40, "y"], 11), ([1, 2, 3], 3), ([[1, 2], [3]], 3)],
)
@pytest.mark.parametrize(
    "usage", [None, {}, "many", {"prompt_tokens": None}, {"prompt_tokens": True}]
)
async def test_without_usage_they_are_estimated_and_marked(
    serve: Serve, caplog: pytest.LogCaptureFixture, given: Any, tokens: int, usage: Any
) -> None:
    caplog.set_level("INFO", "fewer.access")
    script = {"steps": [], "embedding": ANSWER | {"usage": usage}}
    gateway = await serve(backends=script)
    response = await gateway.client.post("/v1/embeddings", json=BODY | {"input": given})
    assert response.json()["usage"] == usage
    await until(lambda: len(caplog.messages) == 1)
    line = json.loads(caplog.messages[0])
    assert (line["prompt_tokens"], line["usage_estimated"]) == (tokens, True)
    metrics = (await gateway.client.get("/metrics")).text
    assert "fewer_usage_estimated_total 1.0" in metrics


async def test_tokens_that_cannot_be_are_counted_as_none(serve: Serve) -> None:
    answer = ANSWER | {"usage": {"prompt_tokens": -5}}
    gateway = await serve(backends={"steps": [], "embedding": answer})
    assert (await gateway.client.post("/v1/embeddings", json=BODY)).json() == answer
    metrics = (await gateway.client.get("/metrics")).text
    assert 'fewer_prompt_tokens_total{model="one",route="chat"} 0.0' in metrics


async def test_a_model_without_them_says_so(serve: Serve) -> None:
    gateway = await serve()
    response = await gateway.client.post("/v1/embeddings", json=BODY)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "model"


@pytest.mark.parametrize("given", [None, "", [], 5, {"a": 1}])
async def test_input_is_checked(serve: Serve, given: Any) -> None:
    gateway = await serve(backends={"one": Embedding("one")})
    response = await gateway.client.post("/v1/embeddings", json={"model": "chat", "input": given})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "input"
    wrong = await gateway.client.post("/v1/embeddings", json={"model": 5, "input": "a"})
    assert wrong.json()["error"]["param"] == "model"


async def test_a_fallback_answers_when_the_first_cannot(serve: Serve) -> None:
    down = Embedding("one", Unavailable("Down."))
    gateway = await serve(scripted_config("one", "two"), {"one": down, "two": Embedding("two")})
    response = await gateway.client.post("/v1/embeddings", json=BODY)
    assert response.headers["x-fewer-model"] == "two"


async def test_the_first_error_is_told_when_all_fail(serve: Serve) -> None:
    slow = ModelConfig(openai="http://127.0.0.1:1/v1", timeout_s=0.05)
    config = Config(
        models={"one": ModelConfig(openai="http://x/v1", fallback=("two",)), "two": slow},
        routes={"chat": RouteConfig("one")},
    )
    backends = {"one": Embedding("one", Unavailable("Down.")), "two": Embedding("two", hang=True)}
    gateway = await serve(config, backends)
    response = await gateway.client.post("/v1/embeddings", json=BODY)
    assert response.status_code == 503
    assert response.json()["error"]["message"] == "Down. Tried: one, two."


async def test_too_slow_is_a_504(serve: Serve) -> None:
    slow = ModelConfig(openai="http://127.0.0.1:1/v1", timeout_s=0.05)
    config = Config(models={"one": slow}, routes={"chat": RouteConfig("one")})
    gateway = await serve(config, {"one": Embedding("one", hang=True)})
    assert (await gateway.client.post("/v1/embeddings", json=BODY)).status_code == 504


async def test_a_client_that_leaves_ends_the_call(serve: Serve) -> None:
    backend = Embedding("one", hang=True)
    gateway: Gateway = await serve(backends={"one": backend})
    _, writer = await gateway.raw(post("/v1/embeddings", b'{"input":"a"}'))
    await until(lambda: len(backend.embeddings) == 1)
    writer.close()
    await until(lambda: backend.left)
