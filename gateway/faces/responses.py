"""`POST /v1/responses`, streamed and whole. See `gateway.responses` for its parts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from starlette.types import Receive, Scope, Send

from engine.protocol.errors import InvalidRequest, NotFound
from engine.protocol.sse import HEADERS, KEEP_ALIVE
from gateway.answer import Answer
from gateway.config import ServerConfig
from gateway.drain import Drain
from gateway.errors import Stopped
from gateway.faces.endpoint import send_json
from gateway.faces.generation import relay, traceparent
from gateway.faces.stream import EventWriter
from gateway.lifeline import Lifeline
from gateway.middleware.limits import whole_body
from gateway.pipeline import Pipeline
from gateway.responses.asked import Asked
from gateway.responses.fields import parse
from gateway.responses.projection import ResponseProjection
from gateway.responses.records import Record, Records
from gateway.responses.running import Running
from gateway.visit import Visit, header, visit_of

STORED = ("completed", "incomplete", "cancelled")
"""What ended otherwise can be neither asked for nor gone on from."""


class _Response(msgspec.Struct, frozen=True):
    """One response on its way."""

    id: str
    asked: Asked
    projection: ResponseProjection
    salt: str
    stream: bool


class ResponsesFace:
    """The ASGI endpoint."""

    def __init__(
        self,
        pipeline: Pipeline,
        drain: Drain,
        server: ServerConfig,
        records: Records,
        running: Running,
    ) -> None:
        self._pipeline = pipeline
        self._drain = drain
        self._server = server
        self._records = records
        self._running = running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields = parse(await whole_body(receive))
        visit = visit_of(scope)
        visit.cache_control = header(scope, b"cache-control")
        wanted = fields.get("model", "")
        route = self._pipeline.match(wanted, header(scope, b"x-fewer-route"), visit)
        lifeline = Lifeline(receive)
        with self._drain.admit(lifeline):
            asked = await self._asked(fields, visit)
            response = _begun(asked, wanted or route.name, visit)
            try:
                with self._running.noted(response.id, response.salt, response.projection, lifeline):
                    async with lifeline:
                        answer = await self._pipeline.answer(
                            asked.request, route, visit, traceparent(scope)
                        )
                        async with answer:
                            await self._write(response, answer, visit, lifeline, send)
            except Stopped:
                await self._end_stopped(response, visit, send)

    async def _asked(self, fields: dict[str, object], visit: Visit) -> Asked:
        former = []
        previous = fields.get("previous_response_id")
        if isinstance(previous, str):
            try:
                record = await self._records.find(previous, visit.known_tenant.salt)
            except NotFound as error:
                raise InvalidRequest(
                    f"{error.message} Send the whole conversation as input.",
                    param="previous_response_id",
                    code="previous_response_not_found",
                ) from error
            former = record.continued
        return Asked.of(fields, visit.call_id, former)

    async def _write(
        self, response: _Response, answer: Answer, visit: Visit, lifeline: Lifeline, send: Send
    ) -> None:
        if response.stream:
            visit.in_band = response.projection.failure
            # As in `GenerationFace`: a task of its own is woken through fewer frames.
            await asyncio.create_task(self._stream(response, answer, lifeline, send))
        else:
            await self._whole(response, answer, lifeline, send)

    async def _stream(
        self, response: _Response, answer: Answer, lifeline: Lifeline, send: Send
    ) -> None:
        # An empty chunk is nothing that this format has.
        keepalive = KEEP_ALIVE if self._server.keepalive == "comment" else b""
        writer = EventWriter(send, lifeline, self._server, keepalive)
        try:
            await writer.open(answer.headers)
            await writer.write(response.projection.opening())
            await relay(answer, response.projection, writer, lifeline, self._ending(response))
        finally:
            writer.close()

    async def _whole(
        self, response: _Response, answer: Answer, lifeline: Lifeline, send: Send
    ) -> None:
        projection = response.projection
        while not projection.ended:
            projection.joined(await answer.receive())
        if projection.error is not None:
            raise projection.error
        lifeline.unwatch()
        await self._ending(response)()
        await send_json(send, projection.response(), headers=answer.headers)

    async def _end_stopped(self, response: _Response, visit: Visit, send: Send) -> None:
        """The client has ended it over another connection: what there is of it, it may have."""
        projection = response.projection
        opening = projection.opening()
        data = opening + projection.cancel() + await self._ending(response)()
        if not response.stream:
            await send_json(send, projection.response())
            return
        if visit.status == 0:
            await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS]})
        await send({"type": "http.response.body", "body": data, "more_body": False})

    def _ending(self, response: _Response) -> Callable[[], Awaitable[bytes]]:
        """Keeps the response before its end is told, so that it can be gone on from at once."""

        async def end() -> bytes:
            told = response.projection.response()
            stored = bool(told["store"]) and told["status"] in STORED
            if stored:
                record = Record(told, response.asked.turns)
                stored = await self._records.keep(record, response.salt)
            return response.projection.closing(stored=stored)

        return end


def _begun(asked: Asked, model: str, visit: Visit) -> _Response:
    id = f"resp_{visit.call_id}"
    return _Response(
        id=id,
        asked=asked,
        projection=ResponseProjection(visit.call_id, asked.described(id, model)),
        salt=visit.known_tenant.salt,
        stream=asked.fields.get("stream", False),
    )
