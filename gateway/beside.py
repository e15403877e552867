"""A thread for what takes long for one request, so that the event loop goes on for all others.

One for whoever makes it: more would only share its interpreter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from engine.protocol.errors import Overloaded

MAX_WAITING = 64
"""Pieces of work that wait for the thread or are done on it. More find no room."""

_T = TypeVar("_T")


class Beside:
    """The thread starts with the first work, and ends when this is forgotten."""

    def __init__(self) -> None:
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, "beside")

    async def run(self, work: Callable[[], _T]) -> _T:
        """What `work` returns. For a caller that is cancelled it is not begun any more.

        Raises `Overloaded`.
        """
        if self._waiting >= MAX_WAITING:
            raise Overloaded("Too many long prompts wait to be looked at.", retry_after_s=1.0)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._waiting -= 1
