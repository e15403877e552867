"""Reading a recording: its lines in the order in which the requests came.

They stand in the order in which the requests ended. So the files are read twice: once to find out
where each line is, and then line by line; a recording need not fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec

from engine.protocol.errors import SetupError
from gateway.recorder.line import Line, decode


class _Head(msgspec.Struct, frozen=True):
    """All of a line that the order needs."""

    begun_s: float
    id: str


_heads = msgspec.json.Decoder(_Head)


class Recording:
    """unreadable: lines that were none, once all have been read"""

    def __init__(self, path: Path) -> None:
        """With the older files beside it. Raises `SetupError` when there is no such file."""
        older = sorted(_numbered(path), reverse=True)
        self._paths = [*(Path(f"{path}.{number}") for number in older), path]
        if not path.is_file():
            raise SetupError(f"There is no recording {path}.")
        self.unreadable = 0

    def __iter__(self) -> Iterator[Line]:
        self.unreadable = 0
        places = self._places()
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("rb")) for path in self._paths]
            for _, _, number, offset in places:
                files[number].seek(offset)
                line = decode(files[number].readline())
                if line is None:
                    self.unreadable += 1
                else:
                    yield line

    def _places(self) -> list[tuple[float, str, int, int]]:
        """When each request came, its id, and where its line is: which file, how far in."""
        places = []
        for number, path in enumerate(self._paths):
            offset = 0
            with path.open("rb") as file:
                for data in file:
                    try:
                        head = _heads.decode(data)
                        places.append((head.begun_s, head.id, number, offset))
                    except (msgspec.DecodeError, UnicodeDecodeError):
                        self.unreadable += 1
                    offset += len(data)
        return sorted(places)


def _numbered(path: Path) -> list[int]:
    """Of the files that were moved away, the higher the older."""
    ends = (
        found.name.removeprefix(f"{path.name}.") for found in path.parent.glob(f"{path.name}.*")
    )
    return [int(end) for end in ends if end.isascii() and end.isdecimal()]
