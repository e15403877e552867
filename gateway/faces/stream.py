"""Writing one event stream to one client: joined sends, keep-alives, an end for slow readers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Send

from engine.protocol.sse import HEADERS
from gateway.config import ServerConfig
from gateway.errors import SlowReader
from gateway.faces.endpoint import Headers
from gateway.lifeline import Lifeline


class EventWriter:
    """Sends bytes as they come. While nothing comes, a timer sends `keepalive` now and then.

    With a client that does not read, `write` waits, so that the backend is not asked for more,
    until the lifeline is cut.

    keepalive: what to send in silence; empty for nothing
    """

    def __init__(
        self, send: Send, lifeline: Lifeline, server: ServerConfig, keepalive: bytes
    ) -> None:
        self._send = send
        self._lifeline = lifeline
        self._server = server
        self._keepalive = keepalive
        self._loop = asyncio.get_running_loop()
        self._silence_s = server.keepalive_first_s
        self._last_s = self._loop.time()
        self._writing_since_s: float | None = None
        self._beat: asyncio.Task[None] | None = None
        self._tick_s = min(server.keepalive_first_s, server.slow_reader_s / 4)
        self._timer = self._loop.call_later(self._tick_s, self._tick)

    async def open(self, headers: Headers) -> None:
        """The response begins: the client learns that it was accepted."""
        self._writing_since_s = self._loop.time()
        await self._send(
            {"type": "http.response.start", "status": 200, "headers": [*HEADERS, *headers]}
        )
        self._writing_since_s = None
        self._last_s = self._loop.time()

    def write(self, data: bytes, *, more: bool = True) -> Coroutine[Any, Any, None]:
        """To be awaited: it is done when the server has taken the bytes."""
        self._silence_s = self._server.keepalive_s
        beat, self._beat = self._beat, None
        return self._write(data, more) if beat is None else self._after(beat, data, more)

    def close(self) -> None:
        """Stop the timer. The response itself ends with the write that says so."""
        self._timer.cancel()
        if self._beat is not None:
            self._beat.cancel()

    async def _after(self, beat: asyncio.Task[None], data: bytes, more: bool) -> None:
        await beat
        await self._write(data, more)

    async def _write(self, data: bytes, more: bool) -> None:
        self._writing_since_s = self._loop.time()
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
        self._writing_since_s = None
        self._last_s = self._loop.time()

    def _tick(self) -> None:
        now_s = self._loop.time()
        if self._writing_since_s is not None:
            if now_s - self._writing_since_s >= self._server.slow_reader_s:
                self._lifeline.cut(SlowReader("The client stopped reading."))
                return
        elif self._keepalive and now_s - self._last_s >= self._silence_s:
            self._silence_s = self._server.keepalive_s
            self._beat = self._loop.create_task(self._write(self._keepalive, True))
        self._timer = self._loop.call_later(self._tick_s, self._tick)
