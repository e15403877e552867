"""The answer of a policy, as a stream like any other: no model is asked."""

from __future__ import annotations

from engine.protocol.frames import Event, StreamEvent, Usage
from gateway.backends.base import Stream
from policies.request import Request


class AnsweredStream(Stream):
    """Every choice is `text`, complete, at no tokens."""

    def __init__(self, id: str, request: Request, text: str) -> None:
        self._events: list[StreamEvent] = [
            Event(id, choice, text=text, finish="stop") for choice in range(request.choices)
        ]
        self._events.append(Event(id, usage=Usage()))

    async def receive(self) -> list[StreamEvent]:
        events, self._events = self._events, []
        return events

    async def aclose(self) -> None:
        self._events = []
