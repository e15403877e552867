"""A fake engine on loopback that speaks the frames of the gateway-engine WebSocket.

It answers hello, generate (with `accepted`) and ping by itself; what happens to a request after
that is the test's to say:

    async with FakeEngine() as engine:
        ...
        generate = await engine.taken(Generate)
        await engine.say(Events([Event(generate.id, text="Hi")]))
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self, TypeVar

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from engine.protocol.frames import (
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    Accepted,
    FromEngine,
    Generate,
    Hello,
    Ping,
    Pong,
    ToEngine,
    Welcome,
    decode_to_engine,
    encode,
)

TOKEN = "fake-token"
WELCOME = Welcome(PROTOCOL_VERSION, "fake", "reference", 4096, 49152, 65536)

_F = TypeVar("_F", bound=ToEngine)


class FakeEngine:
    """The server.

    frames:      all frames received but hello and ping, over all connections
    welcome:     what hello is answered with
    accepts:     whether a generate is accepted by itself
    silent:      while true, nothing is answered, not even pings: an engine under SIGSTOP
    connections: how many were ever made
    """

    def __init__(self, port: int = 0) -> None:
        self.frames: list[ToEngine] = []
        self.welcome: FromEngine = WELCOME
        self.accepts = True
        self.silent = False
        self.connections = 0
        self._port = port
        self._taken = 0
        self._changed = asyncio.Condition()
        self._server: Server | None = None
        self._connection: ServerConnection | None = None

    async def __aenter__(self) -> Self:
        self._server = await serve(
            self._serve, "127.0.0.1", self._port, max_size=MAX_FRAME_BYTES, ping_interval=None
        )
        self._port = next(iter(self._server.sockets)).getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self.drop()
        self._server.close()
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self._port}/v1/engine"

    async def taken(self, kind: type[_F]) -> _F:
        """The next frame, once it has come; it must be of this kind."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.frames) > self._taken)
        frame = self.frames[self._taken]
        self._taken += 1
        assert isinstance(frame, kind), f"expected {kind.__name__}, not {frame}"
        return frame

    async def say(self, frame: FromEngine | bytes) -> None:
        """Send to the latest connection; bytes go out as they are."""
        assert self._connection is not None
        data = frame if isinstance(frame, bytes) else encode(frame)
        await self._connection.send(data, text=True)

    def drop(self) -> None:
        """Cut the latest connection without a word, as SIGKILL does."""
        if self._connection is not None:
            self._connection.transport.abort()

    async def connected(self, number: int) -> None:
        """Returns once so many connections were made."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.connections >= number)

    async def _serve(self, connection: ServerConnection) -> None:
        try:
            hello = decode_to_engine(await connection.recv(False))
            assert isinstance(hello, Hello)
            if self.silent:
                await connection.wait_closed()
                return
            if hello.version != PROTOCOL_VERSION or hello.token != TOKEN:
                await connection.close(1008, "the token is wrong")
                return
            await connection.send(encode(self.welcome), text=True)
            self._connection = connection
            async with self._changed:
                self.connections += 1
                self._changed.notify_all()
            while True:
                await self._react(connection, decode_to_engine(await connection.recv(False)))
        except ConnectionClosed:
            pass

    async def _react(self, connection: ServerConnection, frame: ToEngine) -> None:
        if isinstance(frame, Ping):
            if not self.silent:
                await connection.send(encode(Pong()), text=True)
            return
        if isinstance(frame, Generate) and self.accepts and not self.silent:
            await connection.send(encode(Accepted(frame.id, 5)), text=True)
        async with self._changed:
            self.frames.append(frame)
            self._changed.notify_all()
