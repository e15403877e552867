"""The exchange of a configuration while requests run under it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.protocol.errors import ConfigError
from gateway.backends.base import Backend
from gateway.backends.limits import LimitedBackend
from gateway.backends.openai import OpenAIBackend
from gateway.backends.pool import Backends
from gateway.backends.scripted import ScriptedBackend
from gateway.config import Config, ModelConfig, Price, RouteConfig
from gateway.serving import Serving
from tests.fakes.serving import CHAT_BODY, Gateway, Serve, scripted_config, until
from tests.fakes.upstream import Reply, ScriptedUpstream, chat_stream


class World:
    """Requests through a `Serving` that end when they are told to."""

    def __init__(self, folder: Path) -> None:
        (folder / "script.json").write_text('{"steps": []}')
        self.script = folder / "script.json"
        self.seen: list[tuple[Config, dict[str, Backend]]] = []
        self.serving = self.serve("a", "b")

    def config(self, *names: str, **settings: Any) -> Config:
        model = ModelConfig(scripted=self.script, **settings)
        return Config(models=dict.fromkeys(names, model), routes={"r": RouteConfig(names[0])})

    def serve(self, *names: str) -> Serving:
        config = self.config(*names)
        return Serving(config, Backends.from_config(config, 1, ""), self.make)

    def make(self, config: Config, backends: Any) -> ASGIApp:
        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            self.seen.append((config, dict(backends)))
            await receive()

        return application

    async def request(self) -> Request:
        """One that runs."""
        end, number = asyncio.Event(), len(self.seen)

        async def receive() -> Message:
            await end.wait()
            return {}

        async def send(message: Message) -> None:
            raise AssertionError(message)

        task = asyncio.create_task(self.serving({"type": "http"}, receive, send))
        while len(self.seen) == number:  # noqa: ASYNC110 - the task has begun after a turn
            await asyncio.sleep(0)
        return Request(task, end, *self.seen[number])


class Request:
    def __init__(
        self, task: asyncio.Task[None], end: asyncio.Event, config: Config, backends: Any
    ) -> None:
        self.config = config
        self.backends = backends
        self._task = task
        self._end = end

    async def finish(self) -> None:
        self._end.set()
        await self._task


def is_open(backend: Backend) -> bool:
    assert isinstance(backend, LimitedBackend)
    assert isinstance(backend.inner, ScriptedBackend)
    return backend.inner.is_ready


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_request_keeps_what_it_began_with(world: World) -> None:
    old = await world.request()
    world.serving.exchange(world.config("b", "c"))
    new = await world.request()
    assert (list(old.config.models), list(new.config.models)) == (["a", "b"], ["b", "c"])
    assert repr(world.serving) == "<Serving 1 running, 1 under former configurations>"
    await old.finish()
    await new.finish()
    assert repr(world.serving) == "<Serving 0 running, 0 under former configurations>"


async def test_a_model_that_stays_keeps_its_backend(world: World) -> None:
    old = await world.request()
    world.serving.exchange(world.config("c", "b", price=Price(1, 1), timeout_s=5, fallback=()))
    new = await world.request()
    assert new.backends["b"] is old.backends["b"]
    await old.finish()
    assert is_open(new.backends["b"])
    await until(lambda: not is_open(old.backends["a"]))


@pytest.mark.parametrize(
    "settings",
    [{"max_concurrency": 3}, {"scripted": None, "openai": "http://127.0.0.1:1/v1"}],
)
async def test_a_model_that_changes_gets_a_new_one(world: World, settings: dict[str, Any]) -> None:
    old = await world.request()
    config = world.config("a")
    model = msgspec.structs.replace(config.models["a"], **settings)
    world.serving.exchange(msgspec.structs.replace(config, models={"a": model}))
    new = await world.request()
    assert new.backends["a"] is not old.backends["a"]
    assert is_open(old.backends["a"])
    await old.finish()
    await until(lambda: not is_open(old.backends["a"]))


async def test_the_last_request_that_may_use_it_closes_a_backend(world: World) -> None:
    """A fallback list may still lead there."""
    first = await world.request()
    world.serving.exchange(world.config("a", "c"))
    second = await world.request()
    world.serving.exchange(world.config("c"))
    await first.finish()
    await until(lambda: not is_open(first.backends["b"]))
    assert is_open(first.backends["a"])
    await second.finish()
    await until(lambda: not is_open(first.backends["a"]))
    assert is_open(second.backends["c"])


async def test_without_requests_it_is_closed_at_once(world: World) -> None:
    request = await world.request()
    await request.finish()
    world.serving.exchange(world.config("b"))
    await asyncio.sleep(0)
    await until(lambda: not is_open(request.backends["a"]))
    assert is_open(request.backends["b"])


async def test_what_cannot_be_opened_changes_nothing(world: World) -> None:
    world.serving.exchange(world.config("a", "b"))
    broken = world.config("a", "x")
    models = broken.models | {"x": ModelConfig(scripted=world.script.with_name("none.json"))}
    with pytest.raises(ConfigError):
        world.serving.exchange(msgspec.structs.replace(broken, models=models))
    request = await world.request()
    assert list(request.config.models) == ["a", "b"]
    world.serving.exchange(world.config("b"))
    await request.finish()
    await until(lambda: not is_open(request.backends["a"]))
    assert is_open(request.backends["b"])


async def test_the_end_closes_all(world: World) -> None:
    old = await world.request()
    world.serving.exchange(world.config("c"))
    new = await world.request()
    await world.serving.aclose()
    assert not any(map(is_open, [*old.backends.values(), *new.backends.values()]))
    await old.finish()
    await new.finish()
    await world.serving.aclose()


async def test_backends_that_were_given_stay_whatever_the_configuration_says() -> None:
    given = ScriptedBackend("a", {"steps": []})
    backends = Backends({"a": given})
    config = Config(models={"a": ModelConfig(openai="http://127.0.0.1:1/v1")})
    following = backends.successor(config)
    await backends.aclose()
    await backends.aclose()
    assert following.get("a") is given
    assert given.is_ready
    await following.aclose()
    assert not given.is_ready


async def test_streams_finish_under_the_old_policy_and_new_ones_have_the_new(serve: Serve) -> None:
    """Through the whole application, over sockets."""
    until_exchanged = asyncio.Event()
    first, *rest = chat_stream("a", "b")
    replies = [Reply([first, until_exchanged, *rest]), Reply(chat_stream("c"))]
    async with ScriptedUpstream(replies) as upstream:
        backend = OpenAIBackend("one", upstream.url, model="m")
        gateway: Gateway = await serve(scripted_config(budget=3), {"one": backend})
        async with gateway.client.stream(
            "POST", "/v1/chat/completions", json=CHAT_BODY | {"stream": True}
        ) as old:
            gateway.exchange(scripted_config(budget=1))
            new = await gateway.chat()
            until_exchanged.set()
            text = "".join([piece async for piece in old.aiter_text()])
        await backend.aclose()
    assert "filled: 3" in old.headers["x-fewer-decisions"]
    assert "filled: 1" in new.headers["x-fewer-decisions"]
    assert [request.json["max_tokens"] for request in upstream.requests] == [3, 1]
    assert '"content":"b"' in text
    assert text.endswith("data: [DONE]\n\n")
