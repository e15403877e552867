"""Uvicorn's HTTP protocol with limits that hold before ASGI is reached.

Uvicorn with httptools keeps every header it is sent and waits for ever for the rest: it answered
200 to a request with 200 MB of headers. Here a request gets 431 once its headers are too big or
too many, 408 if they do not arrive in time, and the connection is closed. Both servers use it, and
`engine.protocol.websocket`:

    uvicorn.Config(app, http=HardenedHttpProtocol, ws=HardenedWebSocketProtocol, ...)

Both give the application `scope["extensions"]["fewer.abort"]["call"]()`, which cuts the
connection at once: a peer that reads nothing cannot be sent a goodbye.

Not imported by `engine.protocol` itself, which needs no web server.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from engine.protocol.upgrades import RequestParser, head_for

MAX_HEADER_BYTES = 64 * 1024
"""Request line and headers together."""

MAX_HEADER_COUNT = 128
HEADER_TIMEOUT_S = 10.0
"""From the first byte (or from connecting) to the end of the headers."""

_FRAMING_PER_BODY_BYTE = 8
"""A body sent in chunks of one byte costs six bytes of framing for each."""

LINGER_S = 2.0
"""How long a refused peer may go on sending: closing with unread bytes would destroy the answer."""


class HardenedHttpProtocol(HttpToolsProtocol):
    """HTTP/1.1 with bounds on headers, trailers and chunk framing, in bytes, count and time."""

    parser: RequestParser
    max_header_bytes = MAX_HEADER_BYTES
    max_header_count = MAX_HEADER_COUNT
    header_timeout_s = HEADER_TIMEOUT_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser = RequestParser(self)
        self._stays = False
        self._deaf = False
        self._behind = b""
        # Uvicorn goes by the logger's handlers; whoever adds one would log keys in query strings.
        self.access_log = self.access_log and self.config.access_log
        self._header_timer: asyncio.TimerHandle | None = None
        self._refused = False
        self._fault = ""
        self._fault_status = 431
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
            while piece:
                self._behind = b""
                super().data_received(piece)
                piece = self._behind
            self._check_limits()
        # Most headers come in one piece, and need no timer.
        if self._in_headers and not self._refused and self._header_timer is None:
            self._arm_header_timer()

    def _upgraded(self) -> bool:
        return self.transport.get_protocol() is not self

    def _check_limits(self) -> None:
        """All that is not body is overhead: headers, trailers, chunk sizes, chunk extensions."""
        overhead = self._received_bytes - (1 + _FRAMING_PER_BODY_BYTE) * self._body_bytes
        if overhead > self.max_header_bytes and not self._upgraded():
            self._fault = f"The headers are over the limit of {self.max_header_bytes} bytes."
        if self._fault:
            self._refuse(self._fault_status, self._fault)

    # parser callbacks: once there is a fault, the application must not see more of the request

    def on_message_begin(self) -> None:
        if self._deaf:
            return
        self._in_headers = True
        if self._message_ended:
            self._message_ended = False
            self._received_bytes = self._body_bytes = 0
        super().on_message_begin()
        self.scope["extensions"] = {"fewer.abort": {"call": self.transport.abort}}

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._deaf:
            return
        if name.lower() == b"host" and any(known == b"host" for known, _ in self.headers):
            self._fault, self._fault_status = "There is more than one Host header.", 400
        elif len(self.headers) == self.max_header_count:
            self._fault = f"There are more than {self.max_header_count} headers."
        else:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._deaf:
            return
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
            self._stays = self.parser.should_upgrade() and not self._should_upgrade()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if not self._fault:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._stays:
            return  # the parser cannot know: it has given up before the body
        self._message_ended = True
        if not self._fault:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._cycles = [cycle for cycle in self._cycles if not cycle.response_complete]
        super().on_response_complete()

    # wishes for another protocol

    def _should_upgrade(self) -> bool:
        return self.scope["method"] == "GET" and bool(super()._should_upgrade())

    def _unsupported_upgrade_warning(self) -> None:
        """Called where the parser gave up: another one goes on, with the body."""
        if self._fault:
            return
        self._behind, self.parser = self.parser.behind, RequestParser(self)
        self._stays = False
        self._deaf = True
        self.parser.feed_data(head_for(self.headers))
        self._deaf = False

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
        self.transport.write(refusal(status, message))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_S, self.transport.abort)


def refusal(status: int, message: str) -> bytes:
    """A whole response in the shape of all other errors, after which the connection closes."""
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
