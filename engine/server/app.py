"""The engine's server: the link for gateways, OpenAI endpoints for everybody else."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.routing import Route, Router, WebSocketRoute
from starlette.types import Receive, Scope, Send

from engine.protocol.errors import SetupError
from engine.protocol.frames import MAX_FRAME_BYTES, PROTOCOL_VERSION, Stats, Welcome
from engine.protocol.http import HardenedHttpProtocol
from engine.protocol.websocket import HardenedWebSocketProtocol
from engine.server.completions import Completions
from engine.server.guard import LINK_PATH, Guard, Token
from engine.server.intake import Intake
from engine.server.link_endpoint import LinkEndpoint
from engine.server.mailbox import Exchange
from engine.server.pages import Pages

if TYPE_CHECKING:
    from engine.assembly import Engine

_logger = logging.getLogger("fewer.engine")

DRAIN_S = 20.0
"""How long running requests may take to finish after SIGTERM."""

_FLUSH_S = 2.0
_STATS_INTERVAL_S = 1.0
_KEEP_ALIVE_S = 65
_SWITCH_INTERVAL_S = 2e-4
"""A busy io thread holds the core thread up for one interval at each native call's return."""


class EngineApp:
    """The ASGI app. Its lifespan starts the core; `drain` (or the lifespan's end) stops it."""

    def __init__(self, engine: Engine, token: str) -> None:
        self._engine = engine
        self._draining = False
        self._exchange: Exchange | None = None
        self._intake = Intake(
            engine.tokenizer,
            engine.template,
            engine.max_model_len,
            vocab_size=engine.shape.vocab_size,
        )
        secret = Token(token)
        self._link = LinkEndpoint(engine.core, self._intake, secret, _welcome(engine))
        self._guard = Guard(Router(self._routes(), redirect_slashes=False), secret)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await Router(lifespan=self._lifespan)(scope, receive, send)
        else:
            scope["app"] = self  # makes the router raise for 404 and 405, which the guard answers
            await self._guard(scope, receive, send)

    def _routes(self) -> list[Route | WebSocketRoute]:
        pages = Pages(self._engine, self._intake, lambda: self._draining)
        post, get = ["POST"], ["GET"]
        return [
            WebSocketRoute(LINK_PATH, self._link),
            Route("/v1/chat/completions", self._completions("chat"), methods=post),
            Route("/v1/completions", self._completions("completions"), methods=post),
            Route("/v1/models", pages.models, methods=get),
            Route("/v1/models/{model:path}", pages.model, methods=get),
            Route("/health", pages.ready, methods=get),
            Route("/health/live", pages.live, methods=get),
            Route("/health/ready", pages.ready, methods=get),
            Route("/metrics", pages.metrics, methods=get),
            Route("/tokenize", pages.tokenize, methods=post),
            Route("/detokenize", pages.detokenize, methods=post),
        ]

    def _completions(self, surface: Any) -> Completions:
        engine = self._engine
        return Completions(surface, engine.name, engine.core, self._intake, self._open_exchange)

    def _open_exchange(self) -> Exchange:
        if self._exchange is None:
            self._exchange = Exchange(self._engine.core)
        return self._exchange

    @asynccontextmanager
    async def _lifespan(self, app: Any) -> AsyncIterator[None]:
        self._engine.core.start()
        ticker = asyncio.create_task(self._tell_stats())
        try:
            yield
        finally:
            ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ticker
            await self.drain(0.0)
            if self._exchange is not None:
                self._exchange.close()
            self._intake.close()

    async def drain(self, deadline_s: float) -> None:
        """Refuse what is new, let what runs finish until the deadline, then fail the rest.

        Returns once every answer has been handed to its connection. Safe to call twice: a
        second call with a nearer deadline shortens the first.
        """
        self._draining = True
        await asyncio.to_thread(self._engine.core.stop, deadline_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_S):
                for link in list(self._link.links):
                    await link.queue.idle.wait()
                if self._exchange is not None:
                    await self._exchange.empty()

    async def _tell_stats(self) -> None:
        """Tell every link the load, at most once a second and only when it changed."""
        told = None
        while True:
            await asyncio.sleep(_STATS_INTERVAL_S)
            now = self._engine.core.statistics()
            stats = Stats(now.running, now.waiting, round(now.kv_usage_ratio, 4))
            if stats != told:
                told = stats
                for link in list(self._link.links):
                    link.tell(stats)


def _welcome(engine: Engine) -> Welcome:
    return Welcome(
        version=PROTOCOL_VERSION,
        model=engine.name,
        executor=engine.executor,
        max_model_len=engine.max_model_len,
        vocab_size=engine.tokenizer.vocab_size,
        kv_capacity_tokens=engine.kv_capacity_tokens,
    )


def build_app(engine: Engine, token: str) -> EngineApp:
    """The ASGI app of `engine`; only who knows `token` may use it."""
    return EngineApp(engine, token)


def run(
    engine: Engine,
    host: str,
    port: int,
    token: str,
    *,
    on_ready: Callable[[], None] | None = None,
    drain_s: float = DRAIN_S,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends it at once.

    on_ready: called once, when requests can come. Raises `SetupError` if the port is taken.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    with _listen(host, port) as listener:
        app = build_app(engine, token)
        config = server_config(app)
        _logger.info("Serving %s at http://%s:%d.", engine.name, *listener.getsockname()[:2])
        _Server(config, app, on_ready, drain_s).run(sockets=[listener])


def server_config(app: EngineApp) -> uvicorn.Config:
    """Uvicorn as the engine needs it; the socket is bound elsewhere."""
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=HardenedHttpProtocol,
        ws=HardenedWebSocketProtocol,
        ws_max_size=MAX_FRAME_BYTES,
        ws_per_message_deflate=False,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(_FLUSH_S),
    )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise SetupError(
            f"The engine cannot listen on {host}:{port}: {error.strerror}. "
            f"Choose another port with --port."
        ) from error
    return listener


class _Server(uvicorn.Server):
    """Uvicorn that drains the engine before it closes connections."""

    def __init__(
        self,
        config: uvicorn.Config,
        app: EngineApp,
        on_ready: Callable[[], None] | None,
        drain_s: float,
    ) -> None:
        super().__init__(config)
        self._app = app
        self._on_ready = on_ready
        self._drain_s = drain_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.started:
            return
        # The model's objects live for ever: the collector need not look at them again.
        gc.collect()
        gc.freeze()
        if self._on_ready is not None:
            self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        _logger.info("Draining for up to %g s.", self._drain_s)
        draining = asyncio.create_task(self._app.drain(self._drain_s))
        while not draining.done() and not self.force_exit:
            await asyncio.wait((draining,), timeout=0.05)
        if self.force_exit:
            await self._app.drain(0.0)
        await draining
        await super().shutdown(sockets)
