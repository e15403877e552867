"""Begins the `Visit` of every request, and tells the client its id."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.visit import Visit, header, put_visit

_GIVEN = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class RequestIdMiddleware:
    """A client's own x-request-id is kept where it is harmless in logs and headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = begin(scope)
        told = (b"x-request-id", visit.id.encode())

        def send_with_id(message: Message) -> Awaitable[None]:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                visit.status = visit.status or message["status"]
                message["headers"] = [*message["headers"], told]
            return send(message)

        await self._app(scope, receive, send_with_id)


def begin(scope: Scope) -> Visit:
    """A new visit, put into the scope."""
    call_id = secrets.token_hex(16)
    given = header(scope, b"x-request-id")
    visit = Visit(
        id=given if given and _GIVEN.fullmatch(given) else call_id,
        call_id=call_id,
        method=scope.get("method", "WEBSOCKET"),
        path=scope["path"],
        debug=header(scope, b"x-fewer-debug") == "true",
    )
    put_visit(scope, visit)
    return visit
