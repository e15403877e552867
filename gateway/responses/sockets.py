"""All open sockets of this process, so that a drain can have them closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Sockets:
    """One for a process."""

    def __init__(self) -> None:
        self._open: set[Callable[[], None]] = set()

    def __repr__(self) -> str:
        return f"<Sockets {len(self._open)} open>"

    @contextmanager
    def open(self, wind_up: Callable[[], None]) -> Iterator[None]:
        """One is open while the block lasts. wind_up: has it close when nothing runs on it"""
        self._open.add(wind_up)
        try:
            yield
        finally:
            self._open.discard(wind_up)

    def wind_up(self) -> None:
        """Have all of them close."""
        for wind_up in list(self._open):
            wind_up()
