"""The wiring of the gateway: the only place that knows every part of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.backends.base import Backend
from gateway.backends.pool import Backends
from gateway.budgets import headers as limit_headers
from gateway.budgets.budgets import Budgets
from gateway.budgets.stores import store_of
from gateway.cache.stores import sharing_of
from gateway.config import Config
from gateway.drain import Drain
from gateway.faces import pages
from gateway.faces.admin import AdminFace
from gateway.faces.chat import CHAT
from gateway.faces.completions import COMPLETIONS
from gateway.faces.embeddings import EmbeddingsFace
from gateway.faces.endpoint import Methods, NothingHere
from gateway.faces.feedback import FeedbackFace
from gateway.faces.generation import Format, GenerationFace
from gateway.faces.health import HealthFace, MetricsFace
from gateway.faces.ledger import LedgerFace
from gateway.faces.models import ModelsFace
from gateway.faces.responding import Responding
from gateway.faces.responses import ResponsesFace
from gateway.faces.responses_kept import KeptResponsesFace
from gateway.faces.responses_socket import ResponsesSocketFace
from gateway.garbage import collecting_when_idle
from gateway.history.asking import History
from gateway.history.children import Children
from gateway.history.records import Records
from gateway.ledger.ledger import Ledger
from gateway.middleware.access_log import AccessLogMiddleware
from gateway.middleware.errors import ErrorMiddleware
from gateway.middleware.guard import GuardMiddleware
from gateway.middleware.limits import LimitsMiddleware
from gateway.middleware.request_id import RequestIdMiddleware
from gateway.pipeline import Pipeline
from gateway.recorder.recorder import Recorder
from gateway.reload import Live, following
from gateway.responses.records import Records as ResponseRecords
from gateway.responses.running import Running
from gateway.responses.sockets import Sockets
from gateway.routes import Routes
from gateway.serving import Serving
from gateway.stores.database import beside
from gateway.stores.key_desk import KeyDesk
from gateway.stores.keys import KeyStore
from gateway.stores.ledger import LedgerStore
from gateway.stores.opening import open_ledger
from gateway.telemetry.metrics import Metrics
from gateway.tenants import Tenants

LIVE = "/health/live"
"""The one path, beside the pages' static files, that never needs a key."""

READY = "/health/ready"
"""Without a key it says yes or no, and nothing more."""

TOLD_HEADERS = (
    "x-request-id",
    "x-fewer-route",
    "x-fewer-model",
    "x-fewer-decisions",
    "x-fewer-debug",
    "x-fewer-cache",
    "x-fewer-tokens-saved",
    "x-fewer-similarity",
    *limit_headers.NAMES,
    "retry-after",
    "x-should-retry",
)


def build(
    config: Config,
    backends: Mapping[str, Backend] | None = None,
    *,
    tenants: Tenants | None = None,
    ledger: LedgerStore | None = None,
    engine_port: int = 8090,
    engine_token: str = "",
    tune_garbage: bool = False,
    live: Live | None = None,
) -> Gateway:
    """The gateway as an ASGI application. It closes `backends` at its end.

    backends:     by model name; made from the configuration unless given
    tenants:      who may come in; by the keys of `config.store` unless given
    ledger:       where requests are booked; as `config.ledger` says unless given
    tune_garbage: the process is ours alone, so its garbage collector is run when nobody waits
    live:         where `config` came from, to be followed; without it nothing changes
    """
    if backends is None:
        pool = Backends.from_config(config, engine_port, engine_token)
    else:
        pool = Backends(backends)
    if tenants is None:
        tenants = Tenants(KeyStore(config.store))
    if ledger is None:
        ledger = open_ledger(config.ledger.store.reveal(), beside(config.store, "ledger"))
    return Gateway(config, pool, tenants, ledger, tune_garbage=tune_garbage, live=live)


class Gateway:
    """The ASGI application. Metrics, keys, ledger, answers, what is used of limits, pages and the
    drain outlast every configuration."""

    def __init__(
        self,
        config: Config,
        backends: Backends,
        tenants: Tenants,
        ledger: LedgerStore,
        *,
        tune_garbage: bool = False,
        live: Live | None = None,
    ) -> None:
        self._metrics, self._drain = Metrics(), Drain(config.server.drain_s)
        self._tenants = tenants
        self._ledger = Ledger(ledger, self._metrics)
        self._recorder = Recorder(self._metrics)
        self._sharing = sharing_of(config, self._metrics)
        self._desk = KeyDesk(tenants.store)
        self._budgets = Budgets(partial(store_of, config), self._metrics)
        children = Children(self._metrics)
        self._history = History(Records.of(config, self._metrics), children)
        self._drain.at_start(children.close)
        self._responses, self._running_responses = ResponseRecords.of(config), Running()
        self._sockets = Sockets()
        self._drain.at_start(self._sockets.wind_up)
        self._pages = pages.routes()
        self._tune_garbage = tune_garbage
        self._live = live
        self._serving = Serving(config, backends, self._application)
        self._lifespan = Router(lifespan=self._running)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        application = self._lifespan if scope["type"] == "lifespan" else self._serving
        await application(scope, receive, send)

    def exchange(self, config: Config) -> None:
        """See `Serving.exchange`. A socket would keep its configuration for as long as it is open:
        those that are close as soon as nothing runs on them, and clients connect again."""
        self._serving.exchange(config)
        self._sockets.wind_up()

    def _application(self, config: Config, backends: Mapping[str, Backend]) -> ASGIApp:
        table = self._table(config, backends)
        router = Router(
            table, redirect_slashes=False, default=NothingHere(route.path for route in table)
        )
        public = [LIVE, *(page.path for page in self._pages)]
        return _guarded(router, config, self._tenants, self._metrics, public)

    def _table(
        self, config: Config, backends: Mapping[str, Backend]
    ) -> list[Route | WebSocketRoute]:
        """Every page there is. Bodies are read and limited where a page takes one."""
        routes, metrics, drain = Routes(config), self._metrics, self._drain
        self._ledger.keep(config.ledger)
        self._budgets.keep(config.limits)
        self._recorder.keep(config.recorder)
        pipeline = Pipeline(
            config,
            routes,
            backends,
            metrics,
            ledger=self._ledger,
            sharing=self._sharing,
            budgets=self._budgets,
            history=self._history,
            recorder=self._recorder,
        )
        ledger, models = LedgerFace(self._ledger), ModelsFace(config, routes)
        health = HealthFace(routes, backends, drain)

        def post(application: ASGIApp) -> Methods:
            return Methods(POST=LimitsMiddleware(application, config.server))

        def generation(format: Format) -> Methods:
            return post(GenerationFace(format, pipeline, drain, config.server))

        return [
            Route("/v1/chat/completions", generation(CHAT)),
            Route("/v1/completions", generation(COMPLETIONS)),
            *self._responses_pages(config, pipeline),
            Route(
                "/v1/embeddings",
                post(EmbeddingsFace(config, pipeline, drain, metrics, self._budgets)),
            ),
            Route("/v1/models", Methods(GET=models.all)),
            Route("/v1/models/{name:path}", Methods(GET=models.one)),
            Route("/v1/ledger", Methods(GET=ledger.all)),
            Route("/v1/ledger/{id}", Methods(GET=ledger.one)),
            Route("/v1/feedback", post(FeedbackFace(self._ledger))),
            *AdminFace(config, self._desk, self._budgets).pages(),
            Route(LIVE, Methods(GET=health.live)),
            Route(READY, Methods(GET=health.ready)),
            Route("/metrics", Methods(GET=MetricsFace(metrics))),
            *(Route(page.path, Methods(GET=page.endpoint)) for page in self._pages),
        ]

    def _responses_pages(self, config: Config, pipeline: Pipeline) -> list[Route | WebSocketRoute]:
        records, running, server = self._responses, self._running_responses, config.server
        responding = Responding(pipeline, self._drain, records, running)
        create, kept = ResponsesFace(responding, server), KeptResponsesFace(records, running)
        socket = ResponsesSocketFace(
            responding, self._tenants, self._sockets, self._metrics, server.slow_reader_s
        )
        return [
            WebSocketRoute("/v1/responses", socket),
            Route("/v1/responses", Methods(POST=LimitsMiddleware(create, server))),
            Route("/v1/responses/{id}", Methods(GET=kept.one, DELETE=kept.delete)),
            Route("/v1/responses/{id}/cancel", Methods(POST=kept.cancel)),
            Route("/v1/responses/{id}/input_items", Methods(GET=kept.input_items)),
        ]

    @asynccontextmanager
    async def _running(self, app: object) -> AsyncIterator[dict[str, Any]]:
        """From the start of the server to its end, which ends all that still runs."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._ledger.running())
            await stack.enter_async_context(self._recorder.running())
            stack.push_async_callback(self._budgets.aclose)
            stack.callback(self._desk.close)
            stack.push_async_callback(self._serving.aclose)
            stack.push_async_callback(self._sharing.aclose)
            stack.push_async_callback(self._history.aclose)
            stack.push_async_callback(self._responses.aclose)
            stack.callback(self._drain.cut)
            if self._live is not None:
                await stack.enter_async_context(following(self._live, self.exchange))
            if self._tune_garbage:
                idle = collecting_when_idle(lambda: self._drain.running == 0)
                await stack.enter_async_context(idle)
            yield {"drain": self._drain}


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
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=TOLD_HEADERS,
        )
    app = AccessLogMiddleware(app, metrics)
    return RequestIdMiddleware(app)
