"""The configuration at work, and its exchange for another while requests run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.backends.base import Backend
from gateway.backends.pool import Backends
from gateway.config import Config

Make = Callable[[Config, Mapping[str, Backend]], ASGIApp]
"""Wires the application of a configuration over its backends."""


class _Term:
    """One configuration's time in office, which lasts until its last request has ended."""

    def __init__(self, app: ASGIApp, backends: Backends) -> None:
        self.app = app
        self.backends = backends
        self.running = 0


class Serving:
    """An ASGI application whose configuration can be exchanged.

    Every request keeps the configuration that it began with, its backends included: what only
    that one uses is closed when no request is with it any more.
    """

    def __init__(self, config: Config, backends: Backends, make: Make) -> None:
        self._make = make
        self._current = _Term(make(config, backends.all()), backends)
        self._retired: set[_Term] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        retired = sum(term.running for term in self._retired)
        return f"<Serving {self._current.running} running, {retired} under former configurations>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        term = self._current
        term.running += 1
        try:
            await term.app(scope, receive, send)
        finally:
            term.running -= 1
            self._let_go(term)

    def exchange(self, config: Config) -> None:
        """`config` holds for every request from now on. Needs a running loop.

        Models that stay the same keep their backends. Raises `ConfigError` when one cannot be
        opened; then nothing has changed.
        """
        before = self._current
        backends = before.backends.successor(config)
        self._current = _Term(self._make(config, backends.all()), backends)
        self._retired.add(before)
        self._let_go(before)

    async def aclose(self) -> None:
        """Close every backend that is still open."""
        terms = [self._current, *self._retired]
        await asyncio.gather(*self._closing, *(term.backends.aclose() for term in terms))

    def _let_go(self, term: _Term) -> None:
        """Close what a former configuration leaves behind, once nobody is with it."""
        if term in self._retired and not term.running:
            self._retired.discard(term)
            closing = asyncio.create_task(term.backends.aclose())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
