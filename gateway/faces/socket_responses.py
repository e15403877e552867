"""Writing one response after another to one socket, and what the socket remembers of them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

from msgspec.structs import replace
from starlette.types import Message, Scope

from engine.protocol.errors import FewerError
from engine.protocol.frames import Event, StreamEvent
from gateway.answer import Answer
from gateway.errors import SlowReader, Stopped
from gateway.faces.generation import Writing, relay
from gateway.faces.responding import Responding, Response
from gateway.lifeline import Lifeline
from gateway.responses.commands import Command
from gateway.responses.projection import Framing
from gateway.responses.records import Record
from gateway.visit import Visit, header, visit_of
from policies.request import Request

MAX_RECENT = 32
"""Responses that a socket can go on from though they were not to be kept."""


class SocketResponses:
    """All of one socket. Lines that are written to `writer` are frames."""

    def __init__(self, responding: Responding, scope: Scope, writer: Writing) -> None:
        self._responding = responding
        self._scope = scope
        self._writer = writer
        self._running: set[str] = set()
        self._recent: OrderedDict[str, Record] = OrderedDict()

    async def create(self, command: Command, visit: Visit) -> None:
        """Returns when its end was told. Raises a `FewerError` when nothing was told of it."""
        fields = command.checked()
        responding, lifeline = self._responding, Lifeline(_silence)
        wanted = header(self._scope, b"x-fewer-route")
        route = responding.pipeline.match(fields.get("model", ""), wanted, visit)
        extra = {} if command.lane is None else {"stream_id": command.lane}
        framing = Framing(_frame, extra, errors=False)
        with responding.drain.admit(lifeline):
            response = await responding.begin(fields, route.name, visit, framing, self._recent)
            self._running.add(response.id)
            try:
                with responding.noted(response, lifeline):
                    async with lifeline:
                        request = _asked(response, command)
                        answer = await responding.pipeline.answer(request, route, visit)
                        async with answer:
                            await self._answer(response, answer, lifeline, command)
            except Stopped:
                projection = response.projection
                told = projection.opening() + projection.cancel()
                await self._writer.write(told + await self._ending(response))
            except FewerError as error:
                if isinstance(error, SlowReader) or not response.projection.begun:
                    raise
                visit.error = error.code
                self.forget_parent(fields)
                await self._writer.write(response.projection.failure(error))
            finally:
                self._running.discard(response.id)
            visit.status = visit.status or 200

    def stop(self, id: Any) -> bool:
        """End the response `id`, or all that run for None. False where it does not run here."""
        if id is not None and id not in self._running:
            return False
        salt = visit_of(self._scope).known_tenant.salt
        for each in list(self._running) if id is None else [id]:
            self._responding.running.stop(each, salt)
        return True

    def forget_parent(self, fields: dict[str, Any]) -> None:
        """What could not be gone on from is to be sent whole."""
        self._recent.pop(str(fields.get("previous_response_id")), None)

    async def _answer(
        self, response: Response, answer: Answer, lifeline: Lifeline, command: Command
    ) -> None:
        projection, writer = response.projection, self._writer
        await writer.write(projection.opening())
        if command.generate:

            async def ending() -> bytes:
                return await self._ending(response)

            await relay(answer, projection, writer, lifeline, ending)
            return
        while not projection.ended:
            projection.joined(_unsaid(await answer.receive()))
        await writer.write(await self._ending(response))

    async def _ending(self, response: Response) -> bytes:
        """Remembered before its end is told: another lane may go on from it at once."""
        told = await response.ending()()
        if response.projection.error is not None:
            self.forget_parent(response.asked.fields)
            return told
        self._recent[response.id] = response.record
        while len(self._recent) > MAX_RECENT:
            self._recent.popitem(last=False)
        return told


def _asked(response: Response, command: Command) -> Request:
    """The request; one that only warms up has the prompt read at the price of one token."""
    request = response.asked.request
    if command.generate:
        return request
    choice = None if request.tool_choice not in (None, "auto", "none") else request.tool_choice
    return replace(request, max_tokens=1, tool_choice=choice)


def _unsaid(events: list[StreamEvent]) -> list[StreamEvent]:
    """Of what a warm-up would have written, only its end."""
    return [
        Event(event.id, finish="stop", usage=event.usage) if isinstance(event, Event) else event
        for event in events
        if not isinstance(event, Event) or event.usage is not None
    ]


def _frame(type: str, data: bytes) -> bytes:
    return data + b"\n"


async def _silence() -> Message:
    """A lane has nobody who leaves: the socket is watched."""
    await asyncio.Event().wait()
    return {"type": "http.disconnect"}
