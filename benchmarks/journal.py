"""What a long measurement has found so far, so that one that was interrupted goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path


class Journal:
    """Lists of numbers in order, one a line of a file, kept as soon as they are known.

    values: all that were found, by this process and earlier ones
    """

    def __init__(self, path: Path) -> None:
        """A last line that was cut short, by a process that was killed, is dropped."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            path.write_text(whole)
        self.values: list[list[float]] = [json.loads(line) for line in whole.splitlines()]

    def append(self, found: Sequence[list[float]]) -> None:
        with self._path.open("a") as file:
            file.writelines(f"{json.dumps(one)}\n" for one in found)
        self.values += found
