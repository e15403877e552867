"""The file of a configuration: read once at the start, and again whenever it has changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gateway.config import Config

Stamp = tuple[int, int, int]
"""A file as it lay there: when it was written, which file it is, its size in bytes."""


class Source:
    """Where a configuration comes from. Travels to workers by pickle.

    path: of the file
    load: reads and checks it, with what the command line says on top; raises `ConfigError`
    """

    def __init__(self, path: Path, load: Callable[[], Config]) -> None:
        self.path = path.absolute()
        self._load = load
        self._read: Stamp | None = None
        self._seen: Stamp | None = None

    def __repr__(self) -> str:
        return f"<Source {self.path}>"

    def load(self) -> Config:
        """The configuration as the file says now. Raises `ConfigError`."""
        # Before reading: what is written while we read is read at the next look.
        self._read = _stamp(self.path)
        return self._load()

    def has_changed(self) -> bool:
        """Has the file become another since `load`? Asked now and again; costs one system call.

        It must have rested since the last look: half a file can be a valid one. A file that is
        gone has not changed: whoever replaces it may just be at it.
        """
        seen, self._seen = self._seen, _stamp(self.path)
        return self._seen is not None and self._seen == seen and self._seen != self._read


def _stamp(path: Path) -> Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
