"""What the two text surfaces share: a checked body in, an event stream or one JSON object out."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

import msgspec
from starlette.types import Receive, Scope, Send

from engine.protocol.frames import StreamEvent
from engine.protocol.projection import Collected, Projection
from engine.protocol.sse import KEEP_ALIVE, event
from gateway.answer import Answer
from gateway.canonical import canonical
from gateway.config import ServerConfig
from gateway.drain import Drain
from gateway.faces.endpoint import send_json
from gateway.faces.stream import EventWriter
from gateway.lifeline import Lifeline
from gateway.middleware.limits import whole_body
from gateway.pipeline import Pipeline
from gateway.visit import header, visit_of
from policies.request import Request, Surface

EVENTS_PER_WRITE = 32
"""Then other streams get their turn."""

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class Format(msgspec.Struct, frozen=True):
    """How a surface writes what the pipeline says.

    id_prefix:   of the completion's id
    empty_choice: the choice of a chunk that says nothing, for clients that bear no comments
    """

    surface: Surface
    id_prefix: str
    parse: Callable[[bytes], dict[str, Any]]
    projection: type[Projection]
    empty_choice: dict[str, Any]


class GenerationFace:
    """The ASGI endpoint of one surface."""

    def __init__(
        self, format: Format, pipeline: Pipeline, drain: Drain, server: ServerConfig
    ) -> None:
        self._format = format
        self._pipeline = pipeline
        self._drain = drain
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = canonical(self._format.surface, self._format.parse(await whole_body(receive)))
        visit = visit_of(scope)
        visit.cache_control = header(scope, b"cache-control")
        route = self._pipeline.match(request.model, header(scope, b"x-fewer-route"), visit)
        lifeline = Lifeline(receive)
        with self._drain.admit(lifeline):
            async with lifeline:
                trace = traceparent(scope)
                answer = await self._pipeline.answer(request, route, visit, trace)
                async with answer:
                    wording = _Wording(self._format, answer, request, visit.call_id, route.name)
                    if request.stream:
                        # Every chunk wakes a task through all frames down to its await: in a task
                        # of its own four of them, here eighteen.
                        await asyncio.create_task(self._stream(wording, lifeline, send))
                    else:
                        await _whole(wording, lifeline, send)

    async def _stream(self, wording: _Wording, lifeline: Lifeline, send: Send) -> None:
        keepalive = {"comment": KEEP_ALIVE, "chunk": wording.empty_chunk(), "off": b""}
        writer = EventWriter(send, lifeline, self._server, keepalive[self._server.keepalive])
        try:
            await writer.open(wording.answer.headers)
            await relay(wording.answer, wording.projection(), writer, lifeline)
        finally:
            writer.close()


class Writing(Protocol):
    """What takes bytes to a client, and waits while it does not read."""

    def write(self, data: bytes, *, more: bool = True) -> Awaitable[None]: ...


class Joining(Protocol):
    """What makes bytes of events until it has ended."""

    ended: bool

    def joined(self, events: Iterable[StreamEvent]) -> bytes: ...


async def relay(
    answer: Answer,
    projection: Joining,
    writer: Writing,
    lifeline: Lifeline,
    ending: Callable[[], Awaitable[bytes]] | None = None,
) -> None:
    """Write an answer as it comes, to its end. ending: makes the bytes that come last"""
    last = False
    while not last:
        for events in _slices(await answer.receive()):
            data, last = projection.joined(events), projection.ended
            if last:
                lifeline.unwatch()
                if ending is not None:
                    data += await ending()
            if data:
                await writer.write(data, more=not last)
            if len(events) == EVENTS_PER_WRITE:
                await asyncio.sleep(0)


def _slices(events: list[StreamEvent]) -> list[list[StreamEvent]]:
    size = EVENTS_PER_WRITE
    if len(events) <= size:
        return [events]
    return [events[start : start + size] for start in range(0, len(events), size)]


async def _whole(wording: _Wording, lifeline: Lifeline, send: Send) -> None:
    collected = wording.collected()
    while not collected.ended:
        for each in await wording.answer.receive():
            collected.add(each)
    if collected.error is not None:
        raise collected.error
    lifeline.unwatch()
    await send_json(send, collected.completion(), headers=wording.answer.headers)


class _Wording:
    """One answer in one format: its id, its name, its time."""

    def __init__(
        self, format: Format, answer: Answer, request: Request, call_id: str, route: str
    ) -> None:
        self.answer = answer
        self._format = format
        self._id = format.id_prefix + call_id
        self._model = request.model or route
        self._created = int(time.time())
        self._include_usage = request.include_usage

    def projection(self) -> Projection:
        return self._format.projection(
            self._id, self._model, self._created, include_usage=self._include_usage
        )

    def collected(self) -> Collected:
        return Collected(self._format.surface, self._id, self._model, self._created)

    def empty_chunk(self) -> bytes:
        """A chunk that changes nothing."""
        chunk: dict[str, Any] = {
            "id": self._id,
            "object": self._format.projection.object_name,
            "created": self._created,
            "model": self._model,
            "choices": [self._format.empty_choice],
        }
        if self._include_usage:
            chunk["usage"] = None
        return event(chunk)


def traceparent(scope: Scope) -> str | None:
    """The client's W3C trace context, if it is well formed."""
    given = header(scope, b"traceparent")
    return given if given and _TRACEPARENT.fullmatch(given) else None
