"""Bodies: JSON only, not too large, complete in time. The application gets them whole."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.protocol.errors import Cancelled, TooLarge
from gateway.config import ServerConfig
from gateway.errors import BodyTooSlow, UnsupportedMedia
from gateway.visit import header


class LimitsMiddleware:
    """Stands before each page that takes a body; calls it once the body is here.

    JSON only, because a browser sends forms and plain text to other origins without asking.
    """

    def __init__(self, app: ASGIApp, server: ServerConfig) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._check_headers(scope)
        body = await self._read(receive)
        await self._app(scope, _replaying(body, receive), send)

    def _check_headers(self, scope: Scope) -> None:
        declared = header(scope, b"content-length")
        if declared is not None and declared.isdigit():
            self._check_size(int(declared))
        media = (header(scope, b"content-type") or "").partition(";")[0].strip().lower()
        if media != "application/json":
            raise UnsupportedMedia(
                "The body must be JSON: send the header `Content-Type: application/json`."
            )
        if (header(scope, b"content-encoding") or "identity").strip().lower() != "identity":
            raise UnsupportedMedia("The body must not be compressed; leave out Content-Encoding.")

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self._server.max_body_bytes:
            raise TooLarge(
                f"The body is over this server's limit of {self._server.max_body_bytes} bytes."
            )

    async def _read(self, receive: Receive) -> bytes:
        pieces: list[bytes] = []
        size_bytes = 0
        try:
            async with asyncio.timeout(self._server.body_timeout_s):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Cancelled("The client left while it sent its request.")
                    piece = message.get("body", b"")
                    size_bytes += len(piece)
                    self._check_size(size_bytes)
                    pieces.append(piece)
                    more = message.get("more_body", False)
        except TimeoutError:
            raise BodyTooSlow(
                f"The body was not complete within {self._server.body_timeout_s:g} s."
            ) from None
        return b"".join(pieces)


def _replaying(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the whole body first, and then what still comes."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


async def whole_body(receive: Receive) -> bytes:
    """The body, in an application behind `LimitsMiddleware`."""
    body: bytes = (await receive())["body"]
    return body
