"""The engine's OpenAI endpoints: `/v1/chat/completions` and `/v1/completions`, streamed or whole.

Response headers leave with the first tokens, or with the first keep-alive, so that what fails
while it waits in the queue still gets a status of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from starlette.types import Receive, Scope, Send

from engine.protocol.errors import Cancelled, FewerError, ModelNotFound, Unavailable, from_code
from engine.protocol.frames import Accepted, Event, Failed, StreamEvent
from engine.protocol.openai import Surface, generate_frame, parse_chat, parse_completion
from engine.protocol.projection import (
    ChatProjection,
    Collected,
    CompletionProjection,
    Projection,
    error_chunks,
)
from engine.protocol.sse import HEADERS, KEEP_ALIVE
from engine.server.http import cut, read_json_body, send_json
from engine.server.intake import Intake
from engine.server.mailbox import Exchange, Mailbox

if TYPE_CHECKING:
    from engine.core import Core

FIRST_KEEP_ALIVE_S = 3.0
KEEP_ALIVE_S = 12.0
TIMEOUT_S = 600.0
"""A request that names no shorter time fails after this."""

STALL_S = 30.0
"""How long one write may wait for the client to read."""

Parse = Callable[[bytes], dict[str, Any]]


class Completions:
    """ASGI endpoint of one surface."""

    def __init__(
        self,
        surface: Surface,
        model: str,
        core: Core,
        intake: Intake,
        exchange: Callable[[], Exchange],
    ) -> None:
        self._surface: Surface = surface
        self._model = model
        self._core = core
        self._intake = intake
        self._exchange = exchange
        self._parse: Parse = parse_chat if surface == "chat" else parse_completion

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields = self._parse(await read_json_body(scope, receive))
        check_model(fields, self._model)
        id = ("chatcmpl-" if self._surface == "chat" else "cmpl-") + uuid4().hex
        frame = generate_frame(self._surface, id, fields, timeout_ms=int(TIMEOUT_S * 1000))
        request = await self._intake.request(frame)
        box = self._exchange().open(request)
        watcher = asyncio.create_task(_watch(receive, box))
        try:
            events = _Events(box, self._core, self._intake.echoes(frame))
            if fields.get("stream"):
                await _stream(scope, send, events, self._projection(id, fields))
            else:
                await self._whole(send, events, id)
        finally:
            watcher.cancel()
            box.close()

    def _projection(self, id: str, fields: dict[str, Any]) -> Projection:
        kind = ChatProjection if self._surface == "chat" else CompletionProjection
        wants_usage = bool((fields.get("stream_options") or {}).get("include_usage"))
        return kind(id, self._model, int(time.time()), include_usage=wants_usage)

    async def _whole(self, send: Send, events: _Events, id: str) -> None:
        collected = Collected(self._surface, id, self._model, int(time.time()))
        while not collected.ended:
            for event in await events.receive(KEEP_ALIVE_S):
                collected.add(event)
        if collected.error is not None:
            raise collected.error
        await send_json(send, collected.completion())


def check_model(fields: dict[str, Any], model: str) -> None:
    """An engine has one model; a request may leave its name out, but not name another."""
    named = fields.get("model", model)
    if named != model:
        raise ModelNotFound(
            f"The model {named[:64]!r} does not exist; this engine serves {model!r}.",
            param="model",
        )


class _Events:
    """The events of one request, with the echoed prompts in their place."""

    def __init__(self, box: Mailbox, core: Core, echoes: list[Event]) -> None:
        self._box = box
        self._core = core
        self._echoes: list[StreamEvent] = [*echoes]

    async def receive(self, timeout_s: float) -> list[StreamEvent]:
        events = await self._box.receive(timeout_s)
        if not events and not self._core.alive:
            raise Unavailable("The engine has stopped.", retry_after_s=5.0)
        if self._echoes and any(isinstance(event, Accepted) for event in events):
            events, self._echoes = [*self._echoes, *events], []
        return events


async def _watch(receive: Receive, box: Mailbox) -> None:
    """Nothing follows the body but the disconnect, which is the only way to cancel over HTTP."""
    while (await receive())["type"] != "http.disconnect":
        pass
    box.leave()


async def _stream(scope: Scope, send: Send, events: _Events, projection: Projection) -> None:
    writer = _Writer(scope, send)
    timeout_s = FIRST_KEEP_ALIVE_S
    try:
        while not projection.ended:
            arrived = await events.receive(timeout_s)
            timeout_s = KEEP_ALIVE_S if writer.begun else FIRST_KEEP_ALIVE_S
            chunks = [KEEP_ALIVE] if not arrived else []
            for event in arrived:
                if isinstance(event, Failed) and not writer.begun:
                    raise _error_of(event)
                chunks += projection.chunks(event)
            if chunks:
                await writer.write(b"".join(chunks))
    except Cancelled:
        raise
    except FewerError as error:
        if not writer.begun:
            raise
        await writer.write(b"".join(error_chunks(error)))
    await writer.end()


def _error_of(failed: Failed) -> FewerError:
    return from_code(
        failed.code, failed.message, param=failed.param, retry_after_s=failed.retry_after_s
    )


class _Writer:
    """An event stream's response. A client that stops reading is cut."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self.begun = False

    async def write(self, body: bytes) -> None:
        if not self.begun:
            self.begun = True
            await self._send(
                {"type": "http.response.start", "status": 200, "headers": list(HEADERS)}
            )
        try:
            async with asyncio.timeout(STALL_S):
                await self._send({"type": "http.response.body", "body": body, "more_body": True})
        except TimeoutError:
            await cut(self._scope)
            raise Cancelled("The client stopped reading.") from None

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
