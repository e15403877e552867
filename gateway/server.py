"""Runs the gateway on uvicorn: one process, or several workers that share the port."""

from __future__ import annotations

import logging
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, cast

import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn.supervisors import Multiprocess

from engine.protocol.errors import ConfigError, SetupError
from engine.protocol.http import HardenedHttpProtocol
from engine.protocol.websocket import HardenedWebSocketProtocol
from gateway.app import build
from gateway.config import Config
from gateway.middleware.guard import is_loopback
from gateway.reload import Live
from gateway.source import Source
from gateway.stores.keys import KeyStore
from gateway.tenants import Tenants

KEEP_ALIVE_S = 60
AFTER_DRAIN_S = 5
"""For the last bytes of what the end of the drain has cut."""

SEND_BUFFER_BYTES = 256 * 1024
"""Kernel memory for each client. Left to itself, Linux buffers megabytes for one that does not
read, and pauses its request only then."""

BACKLOG = 2048
WORKER_START_S = 60.0


class Application:
    """Makes the application in whichever process serves it. Travels to workers by pickle.

    live: the configuration, as it holds now and where it came from
    """

    def __init__(self, live: Live, engine_port: int, engine_token: str) -> None:
        self.live = live
        self._engine_port = engine_port
        self._engine_token = engine_token

    def __repr__(self) -> str:
        return f"<Application of {len(self.config.routes)} routes>"

    @property
    def config(self) -> Config:
        return self.live.config

    def __call__(self) -> ASGIApp:
        configure_logging()
        return build(
            self.config,
            engine_port=self._engine_port,
            engine_token=self._engine_token,
            tune_garbage=True,
            live=self.live,
        )


class GatewayHttpProtocol(HardenedHttpProtocol):
    """Limits from the configuration, and the start of the drain."""

    def __init__(self, config: uvicorn.Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        # Uvicorn's own lines hold the query string, where people put keys by mistake.
        self.access_log = False
        server = cast("Application", config.app).config.server
        self.max_header_bytes = server.max_header_bytes
        self.max_header_count = server.max_headers
        self.header_timeout_s = server.header_timeout_s

    def shutdown(self) -> None:
        # The server has just closed its socket; this is called for each open connection.
        self.app_state["drain"].start()
        super().shutdown()


class GatewayWebSocketProtocol(HardenedWebSocketProtocol):
    """The start of the drain, in which a socket closes itself when nothing runs on it any more."""

    def shutdown(self) -> None:
        self.app_state["drain"].start()
        if self.close_sent or not self.handshake_complete:
            super().shutdown()


def run(
    config: Config,
    *,
    host: str,
    port: int,
    workers: int = 1,
    engine_port: int = 8090,
    engine_token: str = "",
    source: Source,
    on_ready: Callable[[], object] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Call it in the main thread.

    source:   what `config` was loaded from; it is read again when it changes
    on_ready: called once requests are answered
    Raises `SetupError` when it cannot start.
    """
    first = config
    server = msgspec.structs.replace(config.server, host=host, port=port, workers=workers)
    config = msgspec.structs.replace(config, server=server)
    check_access(config)
    with ExitStack() as stack:
        listener = stack.enter_context(bind(host, port))
        if workers > 1:
            stack.enter_context(_shared_metrics())
        live = Live(config, source, first)
        settings = uvicorn_config(Application(live, engine_port, engine_token))
        ready = on_ready or (lambda: None)
        # Uvicorn raises the signal again once it has shut down; the work is done then.
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        with suppress(KeyboardInterrupt):
            if workers > 1:
                configure_logging()
                _Workers(settings, [listener], live, ready).run()
            else:
                _Server(settings, ready).run([listener])


def check_access(config: Config) -> None:
    """Raise `SetupError` where everybody on the network could use the gateway."""
    host = config.server.host
    if not is_loopback(host) and Tenants(KeyStore(config.store)).is_open:
        raise SetupError(
            f"Will not listen on {host}: there are no keys, so the whole network could use this "
            f"server. Create one with `fewer keys create --tenant NAME`, or use --host 127.0.0.1."
        )


def bind(host: str, port: int) -> socket.socket:
    """A socket on which uvicorn will listen. Raises `SetupError` when the address is taken."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise SetupError(f"Cannot listen on {host}: {error.strerror or error}.") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise SetupError(
            f"Cannot listen on {host}:{port}: {error.strerror}. Choose another with --port."
        ) from error
    listener.set_inheritable(True)
    return listener


def uvicorn_config(application: Application) -> uvicorn.Config:
    server = application.config.server
    return uvicorn.Config(
        application,
        factory=True,
        http=GatewayHttpProtocol,
        ws=GatewayWebSocketProtocol,
        ws_max_size=server.max_body_bytes,
        loop="uvloop",
        lifespan="on",
        workers=server.workers,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        # Who trusts X-Forwarded-For lets every client choose its address.
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(server.drain_s) + AFTER_DRAIN_S,
    )


def configure_logging() -> None:
    """To standard error, for this process: our lines, and warnings of others."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # Our format names none of these, and each line would ask for them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.getLogger("fewer").setLevel(logging.INFO)
    logging.getLogger("gateway").setLevel(logging.INFO)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], object]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()


class _Workers(Multiprocess):
    """The parent of the workers. It alone looks at the configuration's file."""

    def __init__(
        self,
        config: uvicorn.Config,
        sockets: list[socket.socket],
        live: Live,
        on_ready: Callable[[], object],
    ) -> None:
        super().__init__(config, sockets)
        self._live = live
        self._on_ready = on_ready

    def init_processes(self) -> None:
        super().init_processes()
        stop = threading.Event()
        ready = all(worker.wait_until_ready(WORKER_START_S, stop) for worker in self.processes)
        if ready:
            self._on_ready()

    def keep_subprocess_alive(self) -> None:
        """Called twice a second."""
        super().keep_subprocess_alive()
        if self._live.source.has_changed():
            self._reload()

    def handle_hup(self) -> None:
        """Uvicorn would replace every worker, and cut off what runs in it."""
        if os.isatty(0):  # the terminal has gone
            self.should_exit.set()
        else:
            self._reload()

    def _reload(self) -> None:
        """Have the workers read the file, if it is right. One that starts later gets it from us."""
        try:
            found = self._live.read()
        except ConfigError as error:
            self._live.complain(error)
            return
        self._live.config = found.config
        self._live.tell(found)
        for pid in [worker.pid for worker in self.processes if worker.pid]:
            with suppress(ProcessLookupError):  # it has just died: the next one gets it from us
                os.kill(pid, signal.SIGHUP)


def _shared_metrics() -> ExitStack:
    """A folder where workers leave their counts, so that any of them can tell the sum."""
    stack = ExitStack()
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fewer-metrics-"))
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    stack.callback(os.environ.pop, "PROMETHEUS_MULTIPROC_DIR", None)
    return stack
