"""What the load generator notes of each answer, and the figures that come of it. No I/O."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.figures import percentile


class Call:
    """One request. sent_s, first_s: on the monotonic clock; first_s is 0 before the first text"""

    __slots__ = ("first_s", "sent_s")

    def __init__(self) -> None:
        self.sent_s = self.first_s = 0.0


@dataclass(slots=True)
class Book:
    """Everything heard during one phase. Only what happens while it is `open` is a figure.

    first_s:  time to first text of each request that was sent and answered while it was open
    late_us:  of each piece of text, how long after it was due it arrived
    ended:    answers that came to their end while it was open
    failed:   requests without a whole answer, at any time
    idle:     set when the last answer that was waited for has come
    """

    open: bool = False
    first_s: array[float] = field(default_factory=lambda: array("d"))
    late_us: array[int] = field(default_factory=lambda: array("q"))
    ended: int = 0
    failed: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    _running: set[Call] = field(default_factory=set)
    _opened_s: float = 0.0

    @property
    def chunks(self) -> int:
        return len(self.late_us)

    def begin(self) -> None:
        self.open, self._opened_s = True, time.monotonic()

    def sent(self, call: Call) -> None:
        """To be called right before the bytes go out."""
        self._running.add(call)
        self.idle.clear()
        call.sent_s = time.monotonic()

    def heard(self, call: Call, stamps: Sequence[bytes | str]) -> None:
        """Pieces of text have arrived; each stamp tells in microseconds when it was due."""
        now_s = time.monotonic()
        if not call.first_s:
            call.first_s = now_s
            if self.open and call.sent_s >= self._opened_s:
                self.first_s.append(now_s - call.sent_s)
        if self.open:
            now_us = int(now_s * 1e6)
            self.late_us.extend([now_us - int(stamp) for stamp in stamps])

    def done(self, call: Call, *, whole: bool) -> None:
        """The answer has ended, or broke off."""
        if call in self._running:
            self._running.discard(call)
            self.ended += self.open and whole
            self.failed += not whole
            if not self._running:
                self.idle.set()

    def first_ms(self, percent: float) -> float:
        return percentile(self.first_s, percent) * 1000

    def late_ms(self, percent: float) -> float:
        return percentile(self.late_us, percent) / 1000
