"""Uvicorn's HTTP and WebSocket protocols with limits that hold before ASGI is reached.

Uvicorn with httptools keeps every header it is sent and waits for ever for the rest: it answered
200 to a request with 200 MB of headers. Here a request gets 431 once its headers are too big or
too many, 408 if they do not arrive in time, and the connection is closed. Both servers use it:

    uvicorn.Config(app, http=HardenedHttpProtocol, ws=HardenedWebSocketProtocol, ...)

Both give the application `scope["extensions"]["fewer.abort"]["call"]()`, which cuts the
connection at once: a peer that reads nothing cannot be sent a goodbye.

Not imported by `engine.protocol` itself, which needs no web server.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import orjson
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

MAX_HEADER_BYTES = 64 * 1024
"""Request line and headers together."""

MAX_HEADER_COUNT = 128
HEADER_TIMEOUT_S = 10.0
"""From the first byte (or from connecting) to the end of the headers."""

_FRAMING_PER_BODY_BYTE = 8
"""A body sent in chunks of one byte costs six bytes of framing for each."""

MAX_FRAGMENTS = 16_384
"""Of one WebSocket message: empty ones cost memory that no limit on its size sees."""

_LINGER_S = 2.0
"""How long a refused peer may go on sending: closing with unread bytes would destroy the answer."""


class HardenedHttpProtocol(HttpToolsProtocol):
    """HTTP/1.1 with bounds on headers, trailers and chunk framing, in bytes, count and time."""

    max_header_bytes = MAX_HEADER_BYTES
    max_header_count = MAX_HEADER_COUNT
    header_timeout_s = HEADER_TIMEOUT_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Uvicorn goes by the logger's handlers; whoever adds one would log keys in query strings.
        self.access_log = self.access_log and self.config.access_log
        self._header_timer: asyncio.TimerHandle | None = None
        self._refused = False
        self._fault = ""
        self._cycles: list[RequestResponseCycle] = []
        self._in_headers = False
        self._message_ended = False
        self._received_bytes = 0
        self._body_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm_header_timer()
        self._disconnect_cycles()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), self.max_header_bytes):
            if self._refused or self._upgraded():
                return
            piece = data[start : start + self.max_header_bytes]
            self._received_bytes += len(piece)
            super().data_received(piece)
            self._check_limits()

    def _upgraded(self) -> bool:
        return self.transport.get_protocol() is not self

    def _check_limits(self) -> None:
        """All that is not body is overhead: headers, trailers, chunk sizes, chunk extensions."""
        overhead = self._received_bytes - (1 + _FRAMING_PER_BODY_BYTE) * self._body_bytes
        if overhead > self.max_header_bytes and not self._upgraded():
            self._fault = f"The headers are over the limit of {self.max_header_bytes} bytes."
        if self._fault:
            self._refuse(431, self._fault)

    # parser callbacks: once there is a fault, the application must not see more of the request

    def on_message_begin(self) -> None:
        self._in_headers = True
        if self._message_ended:
            self._message_ended = False
            self._received_bytes = self._body_bytes = 0
            self._arm_header_timer()
        super().on_message_begin()
        self.scope["extensions"] = {"fewer.abort": {"call": self.transport.abort}}

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) == self.max_header_count:
            self._fault = f"There are more than {self.max_header_count} headers."
        else:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._disarm_header_timer()
        size_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size_bytes > self.max_header_bytes:
            self._fault = f"The headers are over the limit of {self.max_header_bytes} bytes."
        if not self._fault:
            before = self.cycle
            super().on_headers_complete()
            if self.cycle is not before:
                self._cycles.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if not self._fault:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._message_ended = True
        if not self._fault:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._cycles = [cycle for cycle in self._cycles if not cycle.response_complete]
        super().on_response_complete()

    def _disconnect_cycles(self) -> None:
        """Tell every request under way; uvicorn tells the newest, which pipelining may queue."""
        for cycle in self._cycles:
            cycle.disconnected = True
            cycle.message_event.set()

    # refusals

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _arm_header_timer(self) -> None:
        self._disarm_header_timer()
        self._header_timer = self.loop.call_later(self.header_timeout_s, self._headers_late)

    def _disarm_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _headers_late(self) -> None:
        if self._cycles:  # the peer is waiting for us, and may send on when it has its answer
            self._arm_header_timer()
        elif not self._in_headers:
            self.transport.close()
        else:
            self._refuse(408, f"The headers were not complete in {self.header_timeout_s:g} s.")

    def _refuse(self, status: int, message: str) -> None:
        """Answer and close; the application never sees the request, or sees a disconnect."""
        if self._refused:
            return
        self._refused = True
        self._disarm_header_timer()
        self._disconnect_cycles()
        if len(self._cycles) > 1 or any(cycle.response_started for cycle in self._cycles):
            self.transport.close()  # what we write now would be read as an answer owed before
            return
        self.transport.write(_refusal(status, message))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(_LINGER_S, self.transport.abort)


def _refusal(status: int, message: str) -> bytes:
    error = {"message": message, "type": "invalid_request_error", "param": None}
    body = orjson.dumps({"error": error | {"code": "bad_http_request"}})
    return (
        b"%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
        % (
            STATUS_LINE[status],
            len(body),
            body,
        )
    )


class HardenedWebSocketProtocol(WebSocketsSansIOProtocol):
    """WebSockets whose failures reach the peer as a close code, and never as a traceback."""

    def handle_events(self) -> None:
        # After a close frame nothing counts, not even the rest of a fragmented message.
        if not self.transport.is_closing():
            super().handle_events()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:  # the application's task starts after this
            extensions = cast("dict[str, Any]", self.scope["extensions"])
            extensions["fewer.abort"] = {"call": self.transport.abort}

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= MAX_FRAGMENTS:
            self.frames = []
            self.conn.fail(1009, f"a message may come in {MAX_FRAGMENTS} fragments")
            self.handle_parser_exception()
        elif not self.close_sent:
            super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.fail(1007, "a text message must be UTF-8")
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    async def send(self, message: ASGISendEvent) -> None:
        if self.close_sent:  # by us, for a fault of the peer's; the application cannot know yet
            raise ClientDisconnected
        await super().send(message)

    def handle_parser_exception(self) -> None:
        """Send the close frame and read on until the peer has it: else a reset would destroy it."""
        if self.close_sent or self.conn.close_sent is None:
            return
        sent = self.conn.close_sent
        self.queue.put_nowait(
            {"type": "websocket.disconnect", "code": sent.code, "reason": sent.reason}
        )
        self.close_sent = True
        self.transport.write(b"".join(self.conn.data_to_send()))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(_LINGER_S, self.transport.close)
