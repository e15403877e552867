"""The wiring of the gateway: the only place that knows every part of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from gateway.backends.base import Backend
from gateway.backends.pool import Backends
from gateway.config import Config
from gateway.drain import Drain
from gateway.faces import pages
from gateway.faces.chat import CHAT
from gateway.faces.completions import COMPLETIONS
from gateway.faces.embeddings import EmbeddingsFace
from gateway.faces.endpoint import Methods, NothingHere
from gateway.faces.generation import Format, GenerationFace
from gateway.faces.health import HealthFace, MetricsFace
from gateway.faces.models import ModelsFace
from gateway.garbage import collecting_when_idle
from gateway.middleware.access_log import AccessLogMiddleware
from gateway.middleware.errors import ErrorMiddleware
from gateway.middleware.guard import GuardMiddleware
from gateway.middleware.limits import LimitsMiddleware
from gateway.middleware.request_id import RequestIdMiddleware
from gateway.pipeline import Pipeline
from gateway.routes import Routes
from gateway.stores.keys import KeyStore
from gateway.telemetry.metrics import Metrics
from gateway.tenants import Tenants

LIVE = "/health/live"
"""The one path, beside the pages' static files, that never needs a key."""

READY = "/health/ready"
"""Without a key it says yes or no, and nothing more."""

TOLD_HEADERS = ("x-request-id", "x-fewer-route", "x-fewer-model", "x-fewer-decisions")


def build(
    config: Config,
    backends: Mapping[str, Backend] | Backends | None = None,
    *,
    tenants: Tenants | None = None,
    engine_port: int = 8090,
    engine_token: str = "",
    tune_garbage: bool = False,
) -> ASGIApp:
    """The gateway as an ASGI application. It closes `backends` at its end.

    backends:     by model name; made from the configuration unless given
    tenants:      who may come in; by the keys of `config.store` unless given
    tune_garbage: the process is ours alone, so its garbage collector is run when nobody waits
    """
    pool = _pool(config, backends, engine_port, engine_token)
    if tenants is None:
        tenants = Tenants(KeyStore(config.store))
    metrics, drain = Metrics(), Drain(config.server.drain_s)
    table = _table(config, pool.all(), metrics, drain)
    router = Router(
        table,
        redirect_slashes=False,
        default=NothingHere(route.path for route in table),
        lifespan=_lifespan(pool, drain, tune_garbage),
    )
    page_paths = [route.path for route in pages.routes()]
    return _guarded(router, config, tenants, metrics, [LIVE, *page_paths])


def _pool(
    config: Config,
    backends: Mapping[str, Backend] | Backends | None,
    engine_port: int,
    engine_token: str,
) -> Backends:
    if backends is None:
        return Backends.from_config(config, engine_port, engine_token)
    return backends if isinstance(backends, Backends) else Backends(backends)


def _table(
    config: Config, backends: Mapping[str, Backend], metrics: Metrics, drain: Drain
) -> list[Route]:
    """Every page there is. Bodies are read and limited where a page takes one."""
    routes = Routes(config)
    pipeline = Pipeline(config, routes, backends, metrics)
    models = ModelsFace(config, routes)
    health = HealthFace(routes, backends, drain)

    def post(application: ASGIApp) -> Methods:
        return Methods(POST=LimitsMiddleware(application, config.server))

    def generation(format: Format) -> Methods:
        return post(GenerationFace(format, pipeline, drain, config.server))

    return [
        Route("/v1/chat/completions", generation(CHAT)),
        Route("/v1/completions", generation(COMPLETIONS)),
        Route("/v1/embeddings", post(EmbeddingsFace(config, pipeline, drain, metrics))),
        Route("/v1/models", Methods(GET=models.all)),
        Route("/v1/models/{name:path}", Methods(GET=models.one)),
        Route(LIVE, Methods(GET=health.live)),
        Route(READY, Methods(GET=health.ready)),
        Route("/metrics", Methods(GET=MetricsFace(metrics))),
        *(Route(page.path, Methods(GET=page.endpoint)) for page in pages.routes()),
    ]


def _lifespan(backends: Backends, drain: Drain, tune_garbage: bool) -> Any:
    @asynccontextmanager
    async def lifespan(app: object) -> AsyncIterator[dict[str, Any]]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(backends.aclose)
            stack.callback(drain.cut)
            if tune_garbage:
                await stack.enter_async_context(collecting_when_idle(lambda: drain.running == 0))
            yield {"drain": drain}

    return lifespan


def _guarded(
    app: ASGIApp, config: Config, tenants: Tenants, metrics: Metrics, public: list[str]
) -> ASGIApp:
    """Middleware, from the inside out."""
    app = GuardMiddleware(app, tenants, config.server, public, terse=[READY])
    app = ErrorMiddleware(app)
    if config.server.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=config.server.allowed_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=TOLD_HEADERS,
        )
    app = AccessLogMiddleware(app, metrics)
    return RequestIdMiddleware(app)
