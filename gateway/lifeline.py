"""Ends one request's work from outside: the client left, time ran out, or we shut down."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self, cast

from starlette.types import Receive

from engine.protocol.errors import Cancelled, FewerError


class Lifeline:
    """A block of work that `cut` ends with a given error.

    While the block runs, `receive` is watched, so that a disconnect cuts it. The body must have
    been read before. As with `asyncio.timeout`, the task is cancelled and the block raises the
    error in place of `CancelledError`; whoever cancels the task for another reason is obeyed.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._reason: FewerError | None = None
        self._task: asyncio.Task[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None

    def cut(self, error: FewerError) -> None:
        """The block raises `error` at its next await. Only the first reason counts."""
        if self._task is not None and self._reason is None:
            self._reason = error
            self._task.cancel()

    def unwatch(self) -> None:
        """The last bytes are about to be sent: a server calls that a disconnect, too."""
        if self._watcher is not None:
            self._watcher.cancel()
            # Its CancelledError holds its frame and so this object: kept, they would be a cycle,
            # which with all of the request's memory waits for the garbage collector.
            self._watcher = None

    async def __aenter__(self) -> Self:
        self._task = task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._cancelling = task.cancelling()
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        task, self._task = cast("asyncio.Task[Any]", self._task), None
        self.unwatch()
        if self._reason is None:
            return
        if task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise self._reason from None

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.cut(Cancelled("The client left."))
