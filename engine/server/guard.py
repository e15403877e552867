"""The door of the engine's server: request ids, the shared token, errors, one log line each."""

from __future__ import annotations

import hmac
import logging
import re
import time
from uuid import uuid4

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.protocol.errors import FewerError, InternalFault, NotFound, Unauthenticated
from engine.server.http import Body, header, send_error, send_json

_logger = logging.getLogger("fewer.engine")
_OPEN_PATHS = frozenset({"/health/live"})
_POLLED_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/metrics"})
"""Machines ask for them again and again; the log is for people."""
LINK_PATH = "/v1/engine"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Token:
    """The secret that the engine shares with whoever may use it. Never shown."""

    def __init__(self, secret: str) -> None:
        if not secret:
            raise ValueError("The engine's token must not be empty.")
        self._secret = secret.encode()

    def __repr__(self) -> str:
        return "<Token ***>"

    def matches(self, given: str) -> bool:
        """Compares in constant time."""
        return hmac.compare_digest(self._secret, given.encode("utf-8", "surrogateescape"))

    def authorises(self, authorization: str | None) -> bool:
        scheme, _, given = (authorization or "").partition(" ")
        return scheme.lower() == "bearer" and self.matches(given.strip())


class Guard:
    """Pure ASGI middleware, outermost.

    Liveness is open; every other page needs `Authorization: Bearer <token>`. The link may also
    bring the token in its first frame, and then closes with 1008 where it is wrong.
    """

    def __init__(self, app: ASGIApp, token: Token) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serve = self._websocket if scope["type"] == "websocket" else self._http
        await serve(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = Body(scope, receive)
        response = _Response(scope, send)
        try:
            if scope["path"] not in _OPEN_PATHS:
                self._check(header(scope, b"authorization"))
            await self._app(scope, body.receive, response.send)
        except FewerError as error:
            response.status = response.status or error.status
            if not response.begun and error.status != 499:
                closing = [] if await body.discard() else [(b"connection", b"close")]
                await send_error(response.send, error, closing)
        except HTTPException as error:
            await self._not_there(response, error)
        except Exception:
            if not response.begun:
                fault = InternalFault("Something broke in the engine; its log says what.")
                await send_error(response.send, fault)
            raise
        finally:
            response.log()

    async def _not_there(self, response: _Response, error: HTTPException) -> None:
        """The router's own refusals, in the shape of all others."""
        wrong_method = error.status_code == 405
        said = NotFound(
            "This page does not know that method." if wrong_method else "There is no such page."
        )
        headers = [
            (name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()
        ]
        await send_json(response.send, said.to_wire(), error.status_code, headers)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        authorization = header(scope, b"authorization")
        try:
            if authorization is not None or scope["path"] != LINK_PATH:
                self._check(authorization)
        except Unauthenticated as error:
            await receive()
            body = b'{"error":{"message":"' + error.message.encode() + b'"}}'
            kind = [(b"content-type", b"application/json")]
            await send(
                {"type": "websocket.http.response.start", "status": error.status, "headers": kind}
            )
            await send({"type": "websocket.http.response.body", "body": body})
            return
        await self._app(scope, receive, send)

    def _check(self, authorization: str | None) -> None:
        if not self._token.authorises(authorization):
            raise Unauthenticated(
                "The engine needs its token: send the header Authorization: Bearer <token>. "
                "`fewer engine` says where it is when it starts."
            )


class _Response:
    """Adds the request id to a response, and knows how far it has come."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._begun_s = time.monotonic()
        given = header(scope, b"x-request-id") or ""
        self.id = given if _REQUEST_ID.fullmatch(given) else f"req-{uuid4().hex}"
        self.status = 0
        self.begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            self.status = message["status"]
            message["headers"] = [*message["headers"], (b"x-request-id", self.id.encode())]
        await self._send(message)

    def log(self) -> None:
        polled = self.status == 200 and self._scope["path"] in _POLLED_PATHS
        _logger.log(
            logging.DEBUG if polled else logging.INFO,
            "%s %s %d %.0f ms %s",
            self._scope["method"],
            self._scope["path"].encode("unicode_escape").decode()[:128],
            self.status or 499,
            (time.monotonic() - self._begun_s) * 1000,
            self.id,
        )
