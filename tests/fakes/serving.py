"""A real gateway on a real socket, in the test's own event loop, over scripted backends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from starlette.types import ASGIApp

from gateway.app import build
from gateway.backends.base import Backend
from gateway.backends.scripted import ScriptedBackend
from gateway.config import BudgetConfig, Config, ModelConfig, RouteConfig, ServerConfig
from gateway.reload import Live
from gateway.server import Application, bind, uvicorn_config
from gateway.source import Source
from gateway.stores.ledger import LedgerStore
from gateway.tenants import Tenants

HELLO: dict[str, Any] = {"steps": [{"text": "Hel"}, {"text": "lo"}]}
CHAT_BODY: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}]}


def scripted_config(
    *models: str, budget: int | None = None, server: ServerConfig | None = None
) -> Config:
    """Models `one`, and each is the next one's fallback; one route, `chat`."""
    names = list(models or ("one",))
    return Config(
        server=server or ServerConfig(),
        models={
            name: ModelConfig(openai="http://127.0.0.1:1/v1", fallback=tuple(names[i + 1 :]))
            for i, name in enumerate(names)
        },
        routes={"chat": RouteConfig(names[0], BudgetConfig(budget) if budget else None)},
        default_route="chat",
    )


class FakeApplication(Application):
    """The gateway over given backends, without a configuration file or a key store."""

    def __init__(self, config: Config, backends: Mapping[str, Backend], tenants: Tenants) -> None:
        super().__init__(Live(config, Source(Path("fewer.yaml"), lambda: config)), 0, "")
        self._backends = backends
        self._tenants = tenants

    def __call__(self) -> ASGIApp:
        ledger = LedgerStore(None)
        self.gateway = build(self.config, self._backends, tenants=self._tenants, ledger=ledger)
        return self.gateway


@dataclass
class Gateway:
    """A running gateway, and a client of it."""

    config: Config
    backends: Mapping[str, Backend]
    server: uvicorn.Server
    port: int
    client: httpx2.AsyncClient
    exchange: Callable[[Config], None]

    @property
    def scripted(self) -> ScriptedBackend:
        backend = next(iter(self.backends.values()))
        assert isinstance(backend, ScriptedBackend)
        return backend

    async def chat(self, *, headers: dict[str, str] | None = None, **fields: Any) -> Any:
        body = CHAT_BODY | fields
        return await self.client.post("/v1/chat/completions", json=body, headers=headers)

    async def raw(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection on which `data` was sent."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        await writer.drain()
        return reader, writer


Serve = Callable[..., Any]
"""`await serve(config, backends, tenants)`: see `running`."""


@asynccontextmanager
async def running(
    config: Config | None = None,
    backends: Mapping[str, Backend] | dict[str, Any] | None = None,
    tenants: Tenants | None = None,
) -> AsyncIterator[Gateway]:
    """A gateway while the block lasts.

    backends: one script for every model, or a backend for each by name
    """
    config = config or scripted_config()
    given: dict[str, Any] = dict(backends or HELLO)
    if "steps" in given or "scripts" in given:
        given = {name: ScriptedBackend(name, given) for name in config.models}
    with bind("127.0.0.1", 0) as listener:
        application = FakeApplication(config, given, tenants or Tenants.open())
        settings = uvicorn_config(application)
        settings.load()
        server = uvicorn.Server(settings)
        server.lifespan = settings.lifespan_class(settings)
        # What `server.serve` does, less its ticks of 0.1 s.
        await server.startup([listener])
        port = listener.getsockname()[1]
        async with httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=30, verify=False
        ) as client:
            yield Gateway(config, given, server, port, client, application.gateway.exchange)
        await server.shutdown([listener])


def post(path: str, body: bytes, *, host: str = "127.0.0.1", more: str = "") -> bytes:
    """The bytes of a POST request."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n{more}\r\n"
    )
    return head.encode() + body


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until `condition` holds; the test's own timeout is the limit."""
    while not condition():  # noqa: ASYNC110 - what is awaited has no event
        await asyncio.sleep(0.005)
