"""One log out of the output of several processes: each line says whose it is."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator

from fewer.terminal import painted

MAX_LINE_CHARACTERS = 8_192
"""Longer lines are broken, so that a process that never ends one costs no memory."""

_COLOURS = ("36", "35", "33", "34", "32")
"""Of ANSI terminals: cyan, magenta, yellow, blue, green. Red is left to errors."""


class LineSplitter:
    """Bytes in, whole lines out. What is not UTF-8 is replaced; no I/O."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def feed(self, data: bytes) -> Iterator[str]:
        self._held += self._decoder.decode(data)
        *lines, self._held = self._held.split("\n")
        for line in lines:
            yield line.removesuffix("\r")
        while len(self._held) >= MAX_LINE_CHARACTERS:
            yield self._held[:MAX_LINE_CHARACTERS]
            self._held = self._held[MAX_LINE_CHARACTERS:]

    def flush(self) -> Iterator[str]:
        """The last line, if it was never ended."""
        held, self._held = self._held + self._decoder.decode(b"", final=True), ""
        if held:
            yield held


class MergedLog:
    """Writes lines under the names of their processes, in one column and, on a terminal, colour."""

    def __init__(self, names: list[str], write: Callable[[str], None]) -> None:
        self._write = write
        width = max(map(len, names), default=0)
        self._prefixes = {
            name: painted(f"{name:{width}} | ", _COLOURS[place % len(_COLOURS)])
            for place, name in enumerate(names)
        }

    def line(self, name: str, text: str) -> None:
        self._write(self._prefixes[name] + text)
