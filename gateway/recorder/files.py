"""A file that grows to a size and then makes room for the next: `path`, `path.1`, `path.2`, ...

Several processes may write to one: each holds the lock while it writes and looks anew what lies
under the path, so none writes to a file that another has moved away.
"""

from __future__ import annotations

import fcntl
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class RotatedFile:
    """Only the user may read it (0600). Every method blocks, and raises `OSError`.

    max_bytes: of one file; a single longer line has one for itself
    files:     that are kept, the one that grows included
    """

    def __init__(self, path: Path, max_bytes: int, files: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._files = files

    def __repr__(self) -> str:
        return f"<RotatedFile {self.path}>"

    def append(self, lines: deque[bytes]) -> None:
        """Write them all, each whole or not at all, and take out of `lines` what is written."""
        if not lines:
            return
        with self._locked():
            while lines:
                with self._opened() as descriptor:
                    size_bytes = os.fstat(descriptor).st_size
                    batch = self._batch(lines, size_bytes)
                    _write(descriptor, b"".join(batch), size_bytes)
                for _ in batch:
                    lines.popleft()
                if lines:
                    self._rotate()

    def _batch(self, lines: deque[bytes], size_bytes: int) -> list[bytes]:
        """As many as fit into the file; at least one into an empty one."""
        batch: list[bytes] = []
        for line in lines:
            size_bytes += len(line)
            if size_bytes > self._max_bytes and size_bytes > len(line):
                break
            batch.append(line)
        return batch

    def _rotate(self) -> None:
        """The oldest goes when there are too many."""
        names = [self.path, *(Path(f"{self.path}.{i}") for i in range(1, self._files))]
        if len(names) == 1:
            self.path.unlink()
        for older, newer in zip(names[:0:-1], names[-2::-1], strict=True):
            if newer.exists():
                newer.replace(older)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(f"{self.path}.lock", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
            yield descriptor
        finally:
            os.close(descriptor)


def _write(descriptor: int, data: bytes, size_bytes: int) -> None:
    """All of it; or nothing: a full disk must not leave half a line."""
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except OSError:
        os.ftruncate(descriptor, size_bytes)
        raise
