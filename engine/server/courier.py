"""One connection as the core sees it, and the core as a connection sees it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.protocol.errors import Unavailable
from engine.protocol.frames import FromEngine
from engine.request import Request

if TYPE_CHECKING:
    from engine.core import Core


class Courier:
    """A core `Sink`, and the commands that go with it. Created on the event loop.

    Frames come from the core thread and are handed to `handle` on the loop, with one wake-up
    for all that has come. Commands to a core that has stopped do nothing: it has already
    answered everything that it had.
    """

    def __init__(self, core: Core, handle: Callable[[list[FromEngine]], None]) -> None:
        self._core = core
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[list[FromEngine]] = deque()
        self._waking = False
        self._closed = False

    def submit(self, request: Request) -> None:
        """Queue `request`. Raises at once what admission would refuse."""
        self._core.check_request(request)
        self._core.submit(request, self)

    def cancel(self, id: str) -> None:
        with contextlib.suppress(Unavailable):
            self._core.cancel(self, id)

    def pause(self, id: str) -> None:
        with contextlib.suppress(Unavailable):
            self._core.pause(self, id)

    def resume(self, id: str) -> None:
        with contextlib.suppress(Unavailable):
            self._core.resume(self, id)

    def close(self) -> None:
        """The connection is gone: all its requests end, and what still arrives is dropped."""
        self._closed = True
        self._arrived.clear()
        with contextlib.suppress(Unavailable):
            self._core.drop(self)

    def deliver(self, frames: list[FromEngine]) -> None:
        """Called on the core thread."""
        if self._closed:
            return
        self._arrived.append(frames)
        if not self._waking:
            self._waking = True
            self._loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        # Cleared first: what is appended from here on either is seen below or wakes us again.
        self._waking = False
        while self._arrived and not self._closed:
            self._handle(self._arrived.popleft())
