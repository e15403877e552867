"""A clock that stands still until a test moves it."""

from __future__ import annotations


class FakeClock:
    """Call it for the time, in seconds; set `now_s` to move it."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s
