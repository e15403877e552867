"""Raw ASGI for the engine's server: read a bounded body, send JSON, say what went wrong."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import Any

import orjson
from starlette.types import Message, Receive, Scope, Send

from engine.protocol.errors import Cancelled, ClientError, FewerError, InvalidRequest, TooLarge
from engine.protocol.frames import MAX_FRAME_BYTES

MAX_BODY_BYTES = MAX_FRAME_BYTES
BODY_TIMEOUT_S = 30.0
"""For a whole body: nobody on the way to a model is slower than that by accident."""

_DISCARD_S = 2.0
_DISCARD_BYTES = 4 * MAX_BODY_BYTES

Headers = Iterable[tuple[bytes, bytes]]


class BodyTooSlow(ClientError):
    """The body was not complete in time."""

    status, code = 408, "request_timeout"


def header(scope: Scope, name: bytes) -> str | None:
    """The header `name` (lower case), or None. HTTP headers are Latin-1 on the wire."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1")
    return None


async def read_json_body(scope: Scope, receive: Receive) -> bytes:
    """The body of a request that says it is JSON. Raises for another type, size or pace."""
    kind = (header(scope, b"content-type") or "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise InvalidRequest("The content type must be application/json.")
    if header(scope, b"content-encoding") not in (None, "identity"):
        raise InvalidRequest("The body must not be compressed.")
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await _read(scope, receive)
    except TimeoutError:
        raise BodyTooSlow(f"The body did not arrive in {BODY_TIMEOUT_S:g} s.") from None


async def _read(scope: Scope, receive: Receive) -> bytes:
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdecimal() and int(declared[:20]) > MAX_BODY_BYTES:
        raise _too_large()
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Cancelled("The client left.")
        part = message.get("body", b"")
        size_bytes += len(part)
        if size_bytes > MAX_BODY_BYTES:
            raise _too_large()
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


class Body:
    """A request's `receive`, which knows whether the body has been read to its end."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        self._ended = header(scope, b"expect") is not None  # not sent before we ask for it

    async def receive(self) -> Message:
        message = await self._receive()
        self._ended = self._ended or not message.get("more_body", False)
        return message

    async def discard(self) -> bool:
        """Read what is left, within limits: closing a connection with unread bytes resets it,
        and the client would not see why. False when there was more than we care to read."""
        size_bytes = 0
        try:
            async with asyncio.timeout(_DISCARD_S):
                while not self._ended and size_bytes < _DISCARD_BYTES:
                    size_bytes += len((await self.receive()).get("body", b""))
        except TimeoutError:
            pass
        return self._ended


def _too_large() -> TooLarge:
    return TooLarge(f"The body is over the limit of {MAX_BODY_BYTES} bytes.")


async def send_json(send: Send, value: Any, status: int = 200, headers: Headers = ()) -> None:
    await send_bytes(send, orjson.dumps(value), b"application/json", status, headers)


async def send_bytes(
    send: Send, body: bytes, content_type: bytes, status: int = 200, headers: Headers = ()
) -> None:
    length = str(len(body)).encode()
    head = [(b"content-type", content_type), (b"content-length", length), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


def retry_headers(error: FewerError) -> Headers:
    """`retry-after`, in whole seconds, where waiting helps."""
    if error.retry_after_s is None:
        return []
    return [(b"retry-after", str(max(1, math.ceil(error.retry_after_s))).encode())]


async def send_error(send: Send, error: FewerError, headers: Headers = ()) -> None:
    """The whole response for an error that came before any byte was sent."""
    await send_json(send, error.to_wire(), error.status, [*retry_headers(error), *headers])


async def cut(scope: Scope) -> None:
    """Abort the connection: its peer reads nothing, so there is no other way to be rid of it."""
    abort = scope.get("extensions", {}).get("fewer.abort")
    if abort is not None:
        abort["call"]()
        await asyncio.sleep(0)  # uvicorn learns of it in the loop's next turn
