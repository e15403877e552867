"""Where HTTP handlers wait for the events of their requests.

All requests that came over HTTP share one sink, so that a step wakes the event loop once for
all of them and not once for each.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from engine.protocol.errors import Cancelled
from engine.protocol.frames import Accepted, Event, Events, Failed, FromEngine, Started, StreamEvent
from engine.request import Request
from engine.server.courier import Courier

if TYPE_CHECKING:
    from engine.core import Core

_PAUSE_CHARS = 256 * 1024
"""Unread text of one request at which it is paused; a slow reader costs no more than this."""


class Mailbox:
    """The unread events of one request. One reader."""

    def __init__(self, exchange: Exchange, id: str) -> None:
        self._exchange = exchange
        self._id = id
        self._events: list[StreamEvent] = []
        self._chars = 0
        self._paused = False
        self._ended = False
        self._left = False
        self._reader: asyncio.Future[None] | None = None

    async def receive(self, timeout_s: float) -> list[StreamEvent]:
        """The events since the last call; empty when none came in time.

        Raises `Cancelled` once the client has left.
        """
        if not self._events and not self._left:
            loop = asyncio.get_running_loop()
            self._reader = loop.create_future()
            timer = loop.call_later(timeout_s, self._wake)
            try:
                await self._reader
            finally:
                timer.cancel()
                self._reader = None
        if self._left:
            raise Cancelled("The client left.")
        events, self._events, self._chars = self._events, [], 0
        if self._paused:
            self._paused = False
            self._exchange.courier.resume(self._id)
        return events

    def leave(self) -> None:
        """The client is gone: the reader gets `Cancelled`, and the generation ends."""
        self._left = True
        self.close()
        self._wake()

    def close(self) -> None:
        """No more is wanted. Cancels the generation unless it has ended."""
        self._exchange.forget(self._id)
        if not self._ended:
            self._ended = True
            self._exchange.courier.cancel(self._id)

    def put(self, event: StreamEvent) -> None:
        if isinstance(event, Event):
            self._ended = self._ended or event.usage is not None
            # What an event costs beside its text, logprobs above all, is counted at a flat rate.
            self._chars += len(event.text) + 64 * (1 + len(event.logprobs or ()))
            if self._chars > _PAUSE_CHARS and not self._paused and not self._ended:
                self._paused = True
                self._exchange.courier.pause(self._id)
        elif isinstance(event, Failed):
            self._ended = True
        self._events.append(event)
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class Exchange:
    """All open mailboxes, and the one sink that fills them. Created on the event loop."""

    def __init__(self, core: Core) -> None:
        self.courier = Courier(core, self._sort)
        self._boxes: dict[str, Mailbox] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._boxes)

    def open(self, request: Request) -> Mailbox:
        """Submit `request`. Raises at once what admission would refuse."""
        self.courier.submit(request)  # what it delivers is sorted on this loop, after we return
        box = self._boxes[request.id] = Mailbox(self, request.id)
        self._empty.clear()
        return box

    def forget(self, id: str) -> None:
        self._boxes.pop(id, None)
        if not self._boxes:
            self._empty.set()

    async def empty(self) -> None:
        """Returns once every open mailbox has been closed by its reader."""
        await self._empty.wait()

    def close(self) -> None:
        self.courier.close()

    def _sort(self, frames: list[FromEngine]) -> None:
        for frame in frames:
            if isinstance(frame, Events):
                for event in frame.events:
                    self._put(event)
            elif isinstance(frame, (Accepted, Started, Failed)):
                self._put(frame)

    def _put(self, event: StreamEvent) -> None:
        box = self._boxes.get(event.id)
        if box is not None:
            box.put(event)
