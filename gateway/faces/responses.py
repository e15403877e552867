"""`POST /v1/responses`, streamed and whole. See `gateway.responses` for its parts."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope, Send

from engine.protocol.sse import HEADERS, KEEP_ALIVE
from gateway.answer import Answer
from gateway.config import ServerConfig
from gateway.errors import Stopped
from gateway.faces.endpoint import send_json
from gateway.faces.generation import relay, traceparent
from gateway.faces.responding import Responding, Response
from gateway.faces.stream import EventWriter
from gateway.lifeline import Lifeline
from gateway.middleware.limits import whole_body
from gateway.responses.fields import parse
from gateway.visit import Visit, header, visit_of


class ResponsesFace:
    """The ASGI endpoint."""

    def __init__(self, responding: Responding, server: ServerConfig) -> None:
        self._responding = responding
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields = parse(await whole_body(receive))
        visit = visit_of(scope)
        visit.cache_control = header(scope, b"cache-control")
        pipeline, lifeline = self._responding.pipeline, Lifeline(receive)
        route = pipeline.match(fields.get("model", ""), header(scope, b"x-fewer-route"), visit)
        with self._responding.drain.admit(lifeline):
            response = await self._responding.begin(fields, route.name, visit)
            try:
                with self._responding.noted(response, lifeline):
                    async with lifeline:
                        request, trace = response.asked.request, traceparent(scope)
                        answer = await pipeline.answer(request, route, visit, trace)
                        async with answer:
                            await self._write(response, answer, visit, lifeline, send)
            except Stopped:
                await _end_stopped(response, visit, send)

    async def _write(
        self, response: Response, answer: Answer, visit: Visit, lifeline: Lifeline, send: Send
    ) -> None:
        if answer.request.stream:
            visit.in_band = response.projection.failure
            # As in `GenerationFace`: a task of its own is woken through fewer frames.
            await asyncio.create_task(self._stream(response, answer, lifeline, send))
        else:
            await _whole(response, answer, lifeline, send)

    async def _stream(
        self, response: Response, answer: Answer, lifeline: Lifeline, send: Send
    ) -> None:
        # An empty chunk is nothing that this format has.
        keepalive = KEEP_ALIVE if self._server.keepalive == "comment" else b""
        writer = EventWriter(send, lifeline, self._server, keepalive)
        try:
            await writer.open(answer.headers)
            await writer.write(response.projection.opening())
            await relay(answer, response.projection, writer, lifeline, response.ending())
        finally:
            writer.close()


async def _whole(response: Response, answer: Answer, lifeline: Lifeline, send: Send) -> None:
    projection = response.projection
    while not projection.ended:
        projection.joined(await answer.receive())
    if projection.error is not None:
        raise projection.error
    lifeline.unwatch()
    await response.ending()()
    await send_json(send, projection.response(), headers=answer.headers)


async def _end_stopped(response: Response, visit: Visit, send: Send) -> None:
    """The client has ended it over another connection: what there is of it, it may have."""
    projection = response.projection
    data = projection.opening() + projection.cancel() + await response.ending()()
    if not response.asked.fields.get("stream"):
        await send_json(send, projection.response())
        return
    if visit.status == 0:
        await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS]})
    await send({"type": "http.response.body", "body": data, "more_body": False})
