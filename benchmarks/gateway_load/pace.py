"""Streams that each say something at a steady pace, and the clock that makes them."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable


def stamp(due_s: float) -> bytes:
    """A piece of text that tells when it was due: `@` and microseconds, in 13 digits.

    The monotonic clock is the same in every process of a machine.
    """
    return b"@%013d" % int(due_s * 1e6)


class Paced(ABC):
    """One answer that is being written."""

    @abstractmethod
    def say(self, text: bytes) -> bool:
        """Send `text`, and the end with the last one. Whether there is more to say."""


class Wheel:
    """Calls every stream once in `pace_s`, each from its own beginning.

    Like an engine's steps, `step_s` apart: what is due in one of them is sent together.

    after: called when a step has been sent
    """

    def __init__(self, pace_s: float, step_s: float, after: Callable[[], None]) -> None:
        self._step_s = step_s
        self._slots: list[list[Paced]] = [[] for _ in range(max(1, round(pace_s / step_s)))]
        self._turn = 0
        self._due_s = time.monotonic()
        self._after = after
        self._loop = asyncio.get_running_loop()
        self._tick()

    def join(self, stream: Paced) -> None:
        """`stream` has just begun: it is called again when the wheel has gone round."""
        self._slots[self._turn - 1].append(stream)

    def _tick(self) -> None:
        while self._due_s <= time.monotonic():
            self._step()
        self._loop.call_later(self._due_s - time.monotonic(), self._tick)

    def _step(self) -> None:
        slot, turn, due_s = self._slots[self._turn], self._turn, self._due_s
        self._turn = (turn + 1) % len(self._slots)
        self._due_s += self._step_s
        if slot:
            text = stamp(due_s)
            self._slots[turn] = [stream for stream in slot if stream.say(text)]
            self._after()
