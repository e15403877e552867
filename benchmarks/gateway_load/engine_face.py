"""An engine without a model: the engine's WebSocket protocol at a given pace.

It welcomes, accepts and starts as an engine of ours does, answers pings and obeys cancels. It
is cheap so that it is not what gets measured: frames are put together from prepared pieces.
"""

from __future__ import annotations

import asyncio
import time
from typing import cast

from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from benchmarks.gateway_load.pace import Paced, Wheel, stamp
from engine.protocol import frames

PROMPT_TOKENS = 16


class Engine:
    """All connections of one listening port. `pace_s` 0 says everything at once."""

    def __init__(self, pace_s: float, step_s: float) -> None:
        self._connections: set[EngineConnection] = set()
        self.wheel = Wheel(pace_s, step_s, self._flush) if pace_s else None

    def connection(self) -> EngineConnection:
        return EngineConnection(self, self._connections)

    def _flush(self) -> None:
        for connection in self._connections:
            connection.flush()


class EngineConnection(asyncio.Protocol):
    """One gateway's connection, and what runs on it."""

    def __init__(self, engine: Engine, connections: set[EngineConnection]) -> None:
        self._engine = engine
        self._connections = connections
        self._websocket = ServerProtocol(max_size=frames.MAX_FRAME_BYTES)
        self._events: list[bytes] = []
        self._running: dict[str, EngineAnswer] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.discard(self)
        for answer in self._running.values():
            answer.left = 0

    def data_received(self, data: bytes) -> None:
        self._websocket.receive_data(data)
        for event in self._websocket.events_received():
            if isinstance(event, Request):
                self._websocket.send_response(self._websocket.accept(event))
                self.transport.write(b"".join(self._websocket.data_to_send()))
            elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                self._obey(frames.decode_to_engine(bytes(event.data)))
        self.transport.write(b"".join(self._websocket.data_to_send()))

    def say(self, event: bytes) -> None:
        """`event` goes with the next flush."""
        self._events.append(event)

    def flush(self) -> None:
        if self._events:
            self._send(b'{"type":"events","events":[%b]}' % b",".join(self._events))
            self._events.clear()

    def ended(self, id: str) -> None:
        self._running.pop(id, None)

    def _obey(self, frame: frames.ToEngine) -> None:
        match frame:
            case frames.Hello():
                welcome = frames.Welcome(
                    frames.PROTOCOL_VERSION, "paced", "scripted", 1 << 20, 1 << 16, 1 << 30
                )
                self._send(frames.encode(welcome))
            case frames.Generate():
                self._begin(frame)
            case frames.Cancel(id) if id in self._running:
                self._running.pop(id).left = 0
            case frames.Ping():
                self._send(frames.encode(frames.Pong()))
            case _:
                pass

    def _begin(self, frame: frames.Generate) -> None:
        self._send(frames.encode(frames.Accepted(frame.id, PROMPT_TOKENS)))
        self._send(frames.encode(frames.Started(frame.id, 0, 0.0)))
        answer = self._running[frame.id] = EngineAnswer(self, frame.id, frame.max_tokens or 1)
        now = stamp(time.monotonic())
        more = answer.say(now)
        if self._engine.wheel is None:
            while more:
                more = answer.say(now)
        elif more:
            self._engine.wheel.join(answer)
        self.flush()

    def _send(self, payload: bytes) -> None:
        size = len(payload)
        if size < 126:
            head = bytes((0x81, size))
        elif size < 1 << 16:
            head = b"\x81\x7e" + size.to_bytes(2)
        else:
            head = b"\x81\x7f" + size.to_bytes(8)
        self.transport.write(head + payload)


class EngineAnswer(Paced):
    """One request. left: tokens still to be said; 0 when it was cancelled"""

    def __init__(self, connection: EngineConnection, id: str, tokens: int) -> None:
        self.left = tokens
        self._connection = connection
        self._id = id
        self._head = b'{"id":"%b","text":"' % id.encode()
        self._tail = b'","tokens":1,"seed":1}'
        usage = frames.Usage(PROMPT_TOKENS, tokens)
        end = frames.encode(frames.Events([frames.Event(id, usage=usage)]))
        self._last = b'","tokens":1,"finish":"length"},' + end[end.index(b"[") + 1 : -2]

    def say(self, text: bytes) -> bool:
        self.left -= 1
        if self.left < 0:  # cancelled
            return False
        if self.left:
            self._connection.say(self._head + text + self._tail)
            self._tail = b'","tokens":1}'
            return True
        self._connection.say(self._head + text + self._last)
        self._connection.ended(self._id)
        return False
