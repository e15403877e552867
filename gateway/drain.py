"""Shutting down without cutting anyone off: what is running may finish, nothing new starts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine.protocol.errors import Unavailable
from gateway.lifeline import Lifeline

RETRY_AFTER_S = 5.0
"""By then another worker or a new process has the port."""


class Drain:
    """All running requests of this process, and whether more may start.

    deadline_s: how long the running ones have, once `start` was called
    """

    def __init__(self, deadline_s: float) -> None:
        self.started = False
        self._deadline_s = deadline_s
        self._running: set[Lifeline] = set()
        self._at_start: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        state = "draining" if self.started else "open"
        return f"<Drain {state}, {len(self._running)} running>"

    @property
    def running(self) -> int:
        return len(self._running)

    def check(self) -> None:
        """Raises `Unavailable` once the drain has started."""
        if self.started:
            raise _closing()

    @contextmanager
    def admit(self, lifeline: Lifeline) -> Iterator[None]:
        """Count a request while it runs. Raises as `check` does."""
        self.check()
        self._running.add(lifeline)
        try:
            yield
        finally:
            self._running.discard(lifeline)

    def at_start(self, callback: Callable[[], None]) -> None:
        """Have it called when the drain starts: for what nobody waits for."""
        self._at_start.append(callback)

    def start(self) -> None:
        """Admit no more; after the deadline the running ones fail. Safe to call twice."""
        if not self.started:
            self.started = True
            for callback in self._at_start:
                callback()
            asyncio.get_running_loop().call_later(self._deadline_s, self.cut)

    def cut(self) -> None:
        """Fail everything that still runs."""
        for lifeline in list(self._running):
            lifeline.cut(_closing())


def _closing() -> Unavailable:
    return Unavailable("The gateway is shutting down; try again.", retry_after_s=RETRY_AFTER_S)
