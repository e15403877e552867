"""Whom the load generator asks: an HTTP server, or an engine without anything between."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable
from typing import Protocol, cast

import orjson
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.gateway_load.book import Book, Call
from benchmarks.gateway_load.upstream import HOST
from engine.protocol import frames

CONNECT_AT_ONCE = 50
_STAMPS = re.compile(rb"@(\d{13})").findall
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_LAST_CHUNK = b"0\r\n\r\n"

Ended = Callable[[], None]


class Target(Protocol):
    """Something that answers requests. What it says goes into `book`."""

    book: Book

    async def open(self, connections: int) -> None:
        """Have so many connections ready."""

    def ask(self, ended: Ended = ...) -> None:
        """Send a request now; `ended` is called when its answer has ended or broken off.

        Without a connection to send it on, the request counts as failed, and nothing is called.
        """

    async def aclose(self) -> None: ...


def nothing() -> None:
    """For who does not care when an answer has ended."""


class HttpTarget:
    """Chat completions over HTTP/1.1 with connections that are kept."""

    def __init__(
        self, port: int, model: str, *, tokens: int, stream: bool, path: str = "/v1"
    ) -> None:
        self.book = Book()
        self._port = port
        body = orjson.dumps(
            {
                "model": model,
                "messages": [{"role": "user", "content": "How fast is it?"}],
                "max_tokens": tokens,
                "stream": stream,
            }
        )
        self._request = (
            f"POST {path}/chat/completions HTTP/1.1\r\nhost: {HOST}:{port}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode() + body
        self._idle: list[_HttpConnection] = []
        self._open: set[_HttpConnection] = set()

    async def open(self, connections: int) -> None:
        while missing := connections - len(self._open):
            await asyncio.gather(*[self._connect() for _ in range(min(missing, CONNECT_AT_ONCE))])

    def ask(self, ended: Ended = nothing) -> None:
        if not self._idle:  # more at once than connections are left for
            self.book.failed += 1
            return
        connection = self._idle.pop()
        self.book.sent(connection.expect(ended))
        connection.transport.write(self._request)

    async def aclose(self) -> None:
        for connection in list(self._open):
            connection.transport.abort()
        await asyncio.sleep(0)

    def freed(self, connection: _HttpConnection) -> None:
        self._idle.append(connection)

    def lost(self, connection: _HttpConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: _HttpConnection(self), HOST, self._port
        )
        self._open.add(connection)
        self._idle.append(connection)


class _HttpConnection(asyncio.Protocol):
    def __init__(self, target: HttpTarget) -> None:
        self._target = target
        self._call: Call | None = None
        self._ended: Ended = nothing
        self._due_bytes: int | None = None
        self._tail = b""
        self._begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._target.lost(self)
        self._end(whole=False)

    def expect(self, ended: Ended) -> Call:
        self._call, self._ended, self._begun = Call(), ended, False
        self._due_bytes = None
        return self._call

    def data_received(self, data: bytes) -> None:
        if self._call is None:
            return
        if not self._begun and not self._begin(data):
            return
        stamps = _STAMPS(data)
        if stamps:
            self._target.book.heard(self._call, stamps)
        if self._due_bytes is None:
            self._tail = (self._tail + data[-5:])[-5:]
            if self._tail == _LAST_CHUNK:
                self._free()
        else:
            self._due_bytes -= len(data)
            if self._due_bytes <= 0:
                self._free()

    def _begin(self, data: bytes) -> bool:
        """Look at the head, which always comes whole. False when it is a refusal."""
        self._begun, self._tail = True, b""
        head, _, _ = data.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            self.transport.abort()
            return False
        if length := _LENGTH.search(head):
            self._due_bytes = len(head) + 4 + int(length[1])
        return True

    def _free(self) -> None:
        self._target.freed(self)
        self._end(whole=True)

    def _end(self, *, whole: bool) -> None:
        call, self._call = self._call, None
        if call is not None:
            self._target.book.done(call, whole=whole)
            self._ended()


class EngineTarget:
    """An engine over its own WebSocket, as a gateway speaks to it."""

    def __init__(self, port: int, *, tokens: int) -> None:
        self.book = Book()
        self._port = port
        self._tokens = tokens
        self._numbers = itertools.count()
        self._calls: dict[str, tuple[Call, Ended]] = {}
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, connections: int) -> None:
        """One connection is all there is."""
        url = f"ws://{HOST}:{self._port}/v1/engine"
        connection = await connect(url, compression=None, ping_interval=None, max_size=None)
        hello = frames.Hello(frames.PROTOCOL_VERSION, "")
        await connection.send(frames.encode(hello), text=True)
        self._tasks = [
            asyncio.create_task(self._read(connection)),
            asyncio.create_task(self._write(connection)),
        ]

    def ask(self, ended: Ended = nothing) -> None:
        id, call = f"direct-{next(self._numbers)}", Call()
        message = {"role": "user", "content": "How fast is it?"}
        frame = frames.Generate(id, messages=[message], max_tokens=self._tokens)
        self._calls[id] = call, ended
        self.book.sent(call)
        self._outbox.put_nowait(frames.encode(frame))

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write(self, connection: ClientConnection) -> None:
        while True:
            await connection.send(await self._outbox.get(), text=True)

    async def _read(self, connection: ClientConnection) -> None:
        try:
            while True:
                frame = frames.decode_from_engine(await connection.recv(False))
                if isinstance(frame, frames.Events):
                    for event in frame.events:
                        self._event(event)
        finally:
            connection.transport.abort()

    def _event(self, event: frames.Event) -> None:
        call, ended = self._calls[event.id]
        if event.text:
            self.book.heard(call, (event.text[1:],))
        if event.usage is not None:
            del self._calls[event.id]
            self.book.done(call, whole=True)
            ended()
