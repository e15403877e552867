"""Where a link begins and ends: the upgrade, the hello, and the close frame that says why."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from starlette.types import Receive, Scope, Send

from engine.protocol.errors import InvalidRequest
from engine.protocol.frames import (
    PROTOCOL_VERSION,
    Hello,
    ToEngine,
    Welcome,
    decode_to_engine,
    id_of_work,
)
from engine.server.guard import Token
from engine.server.http import cut
from engine.server.intake import Intake
from engine.server.link import Closing, Link, Unreadable
from engine.server.send_queue import PeerStalled

if TYPE_CHECKING:
    from engine.core import Core

HELLO_TIMEOUT_S = 5.0

_CLOSE_TIMEOUT_S = 2.0


class LinkEndpoint:
    """ASGI endpoint of the link. `links` are the connections open now."""

    def __init__(self, core: Core, intake: Intake, token: Token, welcome: Welcome) -> None:
        self._core = core
        self._intake = intake
        self._token = token
        self._welcome = welcome
        self.links: set[Link] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        try:
            await self._check_hello(receive)
            await self._serve(receive, send)
        except Closing as closing:
            await _close(scope, send, closing)
        except OSError:
            pass  # the peer left while we wrote: uvicorn's ClientDisconnected

    async def _check_hello(self, receive: Receive) -> None:
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                frame = _frame_of(await receive())
        except TimeoutError:
            raise Closing(1008, "no hello came") from None
        if not isinstance(frame, Hello):
            raise Closing(1008, "the first frame must be hello")
        if frame.version != PROTOCOL_VERSION:
            raise Closing(1008, f"this engine speaks protocol {PROTOCOL_VERSION}")
        if not self._token.matches(frame.token):
            raise Closing(1008, "the token is wrong")

    async def _serve(self, receive: Receive, send: Send) -> None:
        link = Link(self._core, self._intake, send)
        link.queue.put(self._welcome)
        self.links.add(link)
        writer = asyncio.create_task(link.queue.run())
        reader = asyncio.create_task(_read(link, receive))
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.links.discard(link)
            link.close()
            writer.cancel()
            reader.cancel()
            ended = await asyncio.gather(reader, writer, return_exceptions=True)
        _raise_reason(ended)


async def _read(link: Link, receive: Receive) -> None:
    while True:
        frame = _frame_of(await receive())
        if frame is None:
            return
        link.handle(frame)


def _frame_of(message: Any) -> ToEngine | Unreadable | None:
    """The frame in an ASGI message; None when the peer has left."""
    if message["type"] != "websocket.receive":
        return None
    text = message.get("text")
    data = message["bytes"] if text is None else text
    try:
        return decode_to_engine(data)
    except InvalidRequest as error:
        if (id := id_of_work(data)) is not None:
            return Unreadable(id, error.message)
        raise Closing(1007, error.message) from error


def _raise_reason(ended: Iterable[BaseException | None]) -> None:
    """Raise what ended the connection, unless it was the peer that left."""
    for outcome in ended:
        if isinstance(outcome, PeerStalled):
            raise Closing(1013, "you read too slowly")
        if outcome is not None and not isinstance(outcome, (asyncio.CancelledError, OSError)):
            raise outcome


async def _close(scope: Scope, send: Send, closing: Closing) -> None:
    """Close with a code; cut the connection when not even that can be written."""
    reason = closing.reason.encode()[:120].decode(errors="ignore")
    try:
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await send({"type": "websocket.close", "code": closing.code, "reason": reason})
    except TimeoutError:
        await cut(scope)
    except OSError:
        pass  # the peer was faster
