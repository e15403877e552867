"""The one place that turns errors into responses. It knows whether a response has begun.

Before: an HTTP status and OpenAI's error object. During an event stream: the error object in
band, then [DONE], and never a clean finish. Otherwise the connection is closed without an end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.protocol.errors import (
    Cancelled,
    ClientError,
    FewerError,
    InternalFault,
    ServiceError,
)
from engine.protocol.projection import error_chunks
from gateway.errors import MethodNotAllowed, SlowReader
from gateway.visit import visit_of

DEFAULT_RETRY_AFTER_S = 1.0
LINGER_S = 2.0
"""How long a client whose body was refused may go on sending: closing at once would reset the
connection, and the reset destroys the answer before the client reads it."""

_BODY_UNREAD = (408, 413)
_log = logging.getLogger(__name__)


class ErrorMiddleware:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        progress = _Progress(receive, send, scope)
        try:
            await self._app(scope, progress.receive, progress.send)
        except FewerError as error:
            await _answer(error, scope, progress)
        except Exception:
            visit = visit_of(scope)
            _log.exception("request %s failed by a fault of ours", visit.id)
            fault = InternalFault(f"An internal error; its id is {visit.id}.")
            await _answer(fault, scope, progress)


class _Progress:
    """How far request and response have come. Passes everything on as it is; every answer says
    what is left of the limits that its request is under."""

    def __init__(self, receive: Receive, send: Send, scope: Scope) -> None:
        self.start: Message | None = None
        self.body_read = False
        self._receive = receive
        self._send = send
        self._scope = scope

    async def receive(self) -> Message:
        message = await self._receive()
        self.body_read = not message.get("more_body", False)
        return message

    def send(self, message: Message) -> Awaitable[None]:
        if self.start is None:
            self.start = message
            if limits := visit_of(self._scope).limit_headers:
                message["headers"] = [*message["headers"], *limits]
        return self._send(message)

    @property
    def error_headers(self) -> list[tuple[bytes, bytes]]:
        return visit_of(self._scope).error_headers

    async def linger(self) -> None:
        """Take what the client still sends, for a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while not self.body_read:
                    await self.receive()


async def _answer(error: FewerError, scope: Scope, progress: _Progress) -> None:
    visit = visit_of(scope)
    visit.status, visit.error = error.status, error.code
    if isinstance(error, SlowReader):
        await _abort(scope)
    elif isinstance(error, Cancelled):
        return
    elif scope["type"] == "websocket" and progress.start is not None:
        await progress.send({"type": "websocket.close", "code": 1011})
    elif scope["type"] == "websocket":
        await _refuse_websocket(error, scope, progress.send)
    elif progress.start is None:
        await _respond(error, progress)
    elif (b"content-type", b"text/event-stream") in progress.start["headers"]:
        body = visit.in_band(error) if visit.in_band else b"".join(error_chunks(error))
        await progress.send({"type": "http.response.body", "body": body, "more_body": False})


async def _respond(error: FewerError, progress: _Progress) -> None:
    body = orjson.dumps(error.to_wire())
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *headers_of(error),
        *progress.error_headers,
    ]
    unread = error.status in _BODY_UNREAD
    if unread:
        headers.append((b"connection", b"close"))
    start = {"type": "http.response.start", "status": error.status, "headers": headers}
    await progress.send(start)
    await progress.send({"type": "http.response.body", "body": body, "more_body": unread})
    if unread:
        await progress.linger()
        await progress.send({"type": "http.response.body", "body": b"", "more_body": False})


def headers_of(error: FewerError) -> list[tuple[bytes, bytes]]:
    """Whether and when to try again, as OpenAI's clients read it; and what a page allows."""
    headers: list[tuple[bytes, bytes]] = []
    wait_s = error.retry_after_s
    if wait_s is None and isinstance(error, ServiceError) and error.status == 503:
        wait_s = DEFAULT_RETRY_AFTER_S
    if wait_s is not None:
        headers.append((b"retry-after", str(math.ceil(wait_s)).encode()))
        headers.append((b"retry-after-ms", str(math.ceil(wait_s * 1000)).encode()))
    elif isinstance(error, ClientError):
        headers.append((b"x-should-retry", b"false"))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allowed.encode()))
    return headers


async def _refuse_websocket(error: FewerError, scope: Scope, send: Send) -> None:
    """Before the handshake is accepted: an HTTP answer where the server can send one."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": error.code or ""})
        return
    body = orjson.dumps(error.to_wire())
    headers = [(b"content-type", b"application/json"), *headers_of(error)]
    start: dict[str, Any] = {"type": "websocket.http.response.start", "status": error.status}
    await send({**start, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})


async def _abort(scope: Scope) -> None:
    """Cut the connection: a close would wait for ever for the reader to take what is buffered."""
    abort = scope.get("extensions", {}).get("fewer.abort")
    if abort is not None:
        abort["call"]()
        await asyncio.sleep(0)
