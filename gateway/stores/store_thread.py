"""One thread for a store that blocks. The event loop only waits, and not beyond the deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from engine.protocol.errors import DeadlineExceeded, Overloaded

MAX_WAITING = 256
"""Calls that wait for the thread. More find no room, as everywhere."""

_T = TypeVar("_T")


class StoreThread:
    """name: of the store, for people"""

    def __init__(self, name: str, deadline_s: float) -> None:
        self._name = name
        self._deadline_s = deadline_s
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, name)

    async def run(self, work: Callable[[], _T]) -> _T:
        """What `work` returns. A cancelled caller leaves it to be finished.

        Raises `Overloaded` and, at the deadline, `DeadlineExceeded`: then what had begun goes on.
        """
        if self._waiting >= MAX_WAITING:
            raise Overloaded(f"The store {self._name} has too much to do.", retry_after_s=1.0)
        self._waiting += 1
        doing = asyncio.get_running_loop().run_in_executor(self._thread, work)
        doing.add_done_callback(self._done)
        done, _ = await asyncio.wait([doing], timeout=self._deadline_s)
        if not done:
            doing.cancel()
            raise DeadlineExceeded(f"The store {self._name} did not answer in time.")
        return doing.result()

    def submit(self, work: Callable[[], object]) -> None:
        """Do it in its turn; nobody waits."""
        self._thread.submit(work)

    def close(self, last: Callable[[], object]) -> None:
        """Do `last` when all else is done. Safe to call twice: the next use starts a thread."""
        self._thread.submit(last)
        self._thread.shutdown(wait=False)
        self._thread = ThreadPoolExecutor(1, self._name)

    def _done(self, doing: asyncio.Future[_T]) -> None:
        self._waiting -= 1
        if not doing.cancelled():
            doing.exception()  # nobody may be left to be told
