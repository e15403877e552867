"""Generations that policies ask for, in the background: few at once, and never at a client's cost.

A conversation has one at a time, the process MAX_RUNNING. What is too much is not queued: the
next request of the conversation asks again. After a failure a conversation is left alone, longer
each time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Literal

import msgspec

from engine.protocol.errors import Cancelled, DeadlineExceeded, FewerError
from gateway.telemetry.metrics import Metrics

MAX_RUNNING = 4
DEADLINE_S = 60.0
FIRST_PAUSE_S = 15.0
LONGEST_PAUSE_S = 600.0
MAX_PAUSED = 10_000
"""Conversations of which failures are remembered."""

Result = Literal["kept", "useless", "failed", "cancelled"]
Ask = Callable[[], Awaitable[bool]]
"""Asks a model and keeps what came; false where that was of no use. Raises a `FewerError`."""

_log = logging.getLogger("fewer.history")


class Pause(msgspec.Struct, frozen=True):
    """until_s: on the clock; long_s: how long it is"""

    until_s: float
    long_s: float


class Children:
    """One for a process; it outlasts every configuration. Needs a running loop.

    clock: seconds that only go forward
    """

    def __init__(self, metrics: Metrics, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._running: dict[Hashable, asyncio.Task[None]] = {}
        self._paused: OrderedDict[Hashable, Pause] = OrderedDict()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Children {len(self._running)} running, {len(self._paused)} paused>"

    def begin(self, route: str, conversation: Hashable, ask: Ask) -> bool:
        """Start one, unless it would be one too many. conversation: told from all others'."""
        pause = self._paused.get(conversation)
        if (
            self._closed
            or conversation in self._running
            or len(self._running) >= MAX_RUNNING
            or (pause is not None and self._clock() < pause.until_s)
        ):
            return False
        task = asyncio.create_task(self._run(route, conversation, ask))
        self._running[conversation] = task
        task.add_done_callback(lambda done: self._end(conversation, done))
        return True

    def close(self) -> None:
        """End all that run, and start none any more. Safe to call twice."""
        self._closed = True
        for task in self._running.values():
            task.cancel()

    async def aclose(self) -> None:
        """The same, and wait until they have ended."""
        self.close()
        if self._running:
            await asyncio.wait(list(self._running.values()))

    async def _run(self, route: str, conversation: Hashable, ask: Ask) -> None:
        result: Result = "cancelled"
        try:
            result = await self._result(ask)
        finally:
            self._metrics.children.labels(route, result).inc()
        if result == "kept":
            self._paused.pop(conversation, None)
        else:
            self._pause(conversation)

    async def _result(self, ask: Ask) -> Result:
        try:
            async with asyncio.timeout(DEADLINE_S):
                return "kept" if await ask() else "useless"
        except TimeoutError:
            error: FewerError = DeadlineExceeded("It took too long.")
        except Cancelled:
            return "cancelled"
        except FewerError as failure:
            error = failure
        _log.info("a record was not written: %s", error.message)
        return "failed"

    def _pause(self, conversation: Hashable) -> None:
        before = self._paused.pop(conversation, None)
        long_s = min(2 * before.long_s, LONGEST_PAUSE_S) if before else FIRST_PAUSE_S
        self._paused[conversation] = Pause(self._clock() + long_s, long_s)
        if len(self._paused) > MAX_PAUSED:
            self._paused.popitem(last=False)

    def _end(self, conversation: Hashable, task: asyncio.Task[None]) -> None:
        del self._running[conversation]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.critical("a fault while a record was written: %r", error, exc_info=error)
            self._pause(conversation)
