"""The multiplexed WebSocket on which gateways reach the engine (`engine.protocol.frames`).

Every frame but `generate` and `count` is answered where it arrives; those two render and
tokenise in tasks of their own, so that a ping never waits behind a long prompt. One of those two
that cannot be read fails alone: the requests beside it are other people's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.types import Send

from engine.protocol.errors import Cancelled, FewerError, InternalFault, InvalidRequest
from engine.protocol.frames import (
    Accepted,
    Cancel,
    Count,
    Counted,
    Event,
    Events,
    Failed,
    FromEngine,
    Generate,
    Hello,
    Pause,
    Ping,
    Pong,
    Resume,
    Stats,
    ToEngine,
)
from engine.server.courier import Courier
from engine.server.intake import Intake
from engine.server.send_queue import SendQueue

if TYPE_CHECKING:
    from engine.core import Core

_logger = logging.getLogger("fewer.engine")

MAX_ACTIVE = 8192
"""Requests and counts of one connection at once; admission refuses long before."""


class Closing(Exception):
    """We end the connection: with this code, for this reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Unreadable(msgspec.Struct, frozen=True):
    """A frame that starts something, with an id, and a fault elsewhere."""

    id: str
    why: str


class Link:
    """One connection that has said hello."""

    def __init__(self, core: Core, intake: Intake, send: Send) -> None:
        self._intake = intake
        self._courier = Courier(core, self._forward)
        self.queue = SendQueue(send, self._crowded)
        self._active: set[str] = set()
        self._paused_by_peer: set[str] = set()
        self._echoes: dict[str, list[Event]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"<Link {len(self._active)} active, {len(self._tasks)} being read>"

    def handle(self, frame: ToEngine | Unreadable) -> None:
        """React to one frame. Raises `Closing` for what ends the connection."""
        match frame:
            case Generate():
                self._begin(frame.id, self._generate(frame))
            case Count():
                self._begin(frame.id, self._count(frame))
            case Unreadable():
                self._begin(frame.id, _refuse(frame))
            case Cancel():
                self._cancel(frame.id)
            case Pause():
                if frame.id in self._active:
                    self._paused_by_peer.add(frame.id)
                    self._courier.pause(frame.id)
            case Resume():
                self._paused_by_peer.discard(frame.id)
                if not self.queue.crowded:
                    self._courier.resume(frame.id)
            case Ping():
                self.queue.put(Pong())
            case Hello():
                raise Closing(1008, "hello comes once, first")

    def tell(self, stats: Stats) -> None:
        if not self.queue.crowded:
            self.queue.put(stats)

    def close(self) -> None:
        """The connection is gone: everything that was started on it ends."""
        for task in self._tasks.values():
            task.cancel()
        self._courier.close()

    def _begin(self, id: str, work: Coroutine[Any, Any, None]) -> None:
        if id in self._active or len(self._active) >= MAX_ACTIVE:
            work.close()
            reason = "an id was used again" if id in self._active else "too many requests at once"
            raise Closing(1008, reason)
        self._active.add(id)
        task = asyncio.get_running_loop().create_task(self._guarded(id, work))
        self._tasks[id] = task
        task.add_done_callback(lambda _: self._tasks.pop(id, None))

    async def _guarded(self, id: str, work: Coroutine[Any, Any, None]) -> None:
        """Whatever goes wrong before the core has a request ends that request, and no other."""
        try:
            await work
        except FewerError as error:
            self._forward([Failed.of(id, error)])
        except Exception:
            _logger.exception("A request could not be read.")
            fault = InternalFault("The request could not be read; the engine's log says why.")
            self._forward([Failed.of(id, fault)])

    async def _generate(self, frame: Generate) -> None:
        request = await self._intake.request(frame)
        if echoes := self._intake.echoes(frame):
            self._echoes[frame.id] = echoes
        self._courier.submit(request)
        if self.queue.crowded or frame.id in self._paused_by_peer:
            self._courier.pause(frame.id)

    async def _count(self, frame: Count) -> None:
        if (frame.messages is None) == (frame.text is None):
            raise InvalidRequest("A count needs either messages or a text.")
        if frame.messages is not None:
            ids = await self._intake.render(frame.messages, frame.tools)
        else:
            ids = await self._intake.encode(frame.text or "")
        self._forward([Counted(frame.id, len(ids))])

    def _cancel(self, id: str) -> None:
        task = self._tasks.get(id)
        if task is not None and task.cancel():
            self._forward([Failed.of(id, Cancelled("The request was cancelled."))])
        else:
            self._courier.cancel(id)

    def _forward(self, frames: list[FromEngine]) -> None:
        for frame in frames:
            if isinstance(frame, Events):
                for event in frame.events:
                    if event.usage is not None:
                        self._forget(event.id)
            elif isinstance(frame, (Failed, Counted)):
                self._forget(frame.id)
            self.queue.put(frame)
            if isinstance(frame, Accepted) and frame.id in self._echoes:
                self.queue.put(Events(self._echoes.pop(frame.id)))

    def _forget(self, id: str) -> None:
        self._active.discard(id)
        self._paused_by_peer.discard(id)
        self._echoes.pop(id, None)

    def _crowded(self, crowded: bool) -> None:
        """The peer reads too slowly, or has caught up: its requests stand still, or go on."""
        act = self._courier.pause if crowded else self._courier.resume
        for id in self._active - self._paused_by_peer:
            act(id)


async def _refuse(frame: Unreadable) -> None:
    _logger.error("A request could not be read: %s", frame.why)
    raise InternalFault("The engine could not read the request; its log says why.")
