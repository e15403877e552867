"""Reads GGUF's scalars, strings and arrays from a buffer, never past its end.

The format is little-endian; a string is a uint64 length and its UTF-8 bytes, an array is a type,
a uint64 count and its elements
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

import mmap
import struct
from typing import Any

import numpy as np

from engine.protocol.errors import ModelFileError

MAX_HEADER_BYTES = 256 * 1024 * 1024
"""Names, vocabulary and templates together. The largest vocabularies known take about 20 MB."""
MAX_ARRAY_LENGTH = 1 << 24
MAX_NAME_BYTES = 65535
"""The specification's limit for keys; tensor names are far shorter."""

_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, struct.Struct] = {
    number: struct.Struct("<" + letter)
    for number, letter in {
        0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
    }.items()
}  # fmt: skip
_UINT32, _UINT64 = _SCALARS[4], _SCALARS[10]


class Cursor:
    """A position in `data` that moves forward. Every read is checked against the end first.

    path: names the file in errors; all errors are `ModelFileError`
    """

    def __init__(self, data: mmap.mmap | bytes, path: str) -> None:
        self.data = data
        self.path = path
        self.position = 0
        self.end = min(len(data), MAX_HEADER_BYTES)

    def require(self, size_bytes: int, what: str) -> None:
        """Raise unless `size_bytes` more bytes can be read. `what` names them in the error."""
        if size_bytes <= self.end - self.position:
            return
        limit = "the file ends" if self.end == len(self.data) else "the header may not go on"
        raise ModelFileError(
            f"{self.path}: {what} needs {size_bytes} bytes at offset {self.position}, "
            f"but {limit} at {self.end}. The file is cut short or damaged; get it again."
        )

    def uint32(self, what: str) -> int:
        return int(self._scalar(_UINT32, what))

    def uint64(self, what: str) -> int:
        return int(self._scalar(_UINT64, what))

    def name(self, what: str) -> str:
        """A string short enough to be a key or the name of a tensor."""
        length = self.uint64(f"the length of {what}")
        if length > MAX_NAME_BYTES:
            raise ModelFileError(
                f"{self.path}: {what} claims a length of {length} bytes, more than the "
                f"{MAX_NAME_BYTES} that the format allows. The file is damaged; get it again."
            )
        return self._text(length, what)

    def value(self, what: str) -> Any:
        """A metadata value: its type number, then its content, as plain Python values."""
        return self._content(self.uint32(f"the type of {what}"), what)

    def _content(self, kind: int, what: str) -> Any:
        if kind == _STRING:
            return self._text(self.uint64(f"the length of {what}"), what)
        if kind == _ARRAY:
            return self._array(what)
        if kind not in _SCALARS:
            raise ModelFileError(f"{self.path}: {what} has the unknown value type {kind}.")
        return self._scalar(_SCALARS[kind], what)

    def _array(self, what: str) -> list[Any]:
        kind = self.uint32(f"the element type of {what}")
        length = self.uint64(f"the length of {what}")
        if length > MAX_ARRAY_LENGTH:
            raise ModelFileError(
                f"{self.path}: {what} claims {length} elements; at most {MAX_ARRAY_LENGTH} can "
                "be read."
            )
        if kind == _STRING:
            return self._strings(length, what)
        if kind not in _SCALARS:
            raise ModelFileError(
                f"{self.path}: {what} is an array of type {kind}; arrays of numbers, booleans "
                "and strings are read."
            )
        form = _SCALARS[kind]
        self.require(length * form.size, what)
        elements: list[Any] = np.frombuffer(self.data, form.format, length, self.position).tolist()
        self.position += length * form.size
        return elements

    def _strings(self, count: int, what: str) -> list[str]:
        # Vocabularies have some 100,000 strings: one flat loop over locals reads them in 50 ms.
        self.require(count * _UINT64.size, what)
        data, end, position, length_at = self.data, self.end, self.position, _UINT64.unpack_from
        texts: list[str] = []
        try:
            for _ in range(count):
                start = position + 8
                stop = start + (length_at(data, position)[0] if start <= end else 0)
                if stop > end:
                    self.position = min(start, end)
                    self.require(stop - self.position, f"string {len(texts)} of {what}")
                texts.append(str(data[start:stop], "utf-8"))
                position = stop
        except UnicodeDecodeError as error:
            raise self._not_utf8(f"string {len(texts)} of {what}") from error
        self.position = position
        return texts

    def _text(self, length: int, what: str) -> str:
        self.require(length, what)
        self.position += length
        try:
            return str(self.data[self.position - length : self.position], "utf-8")
        except UnicodeDecodeError as error:
            raise self._not_utf8(what) from error

    def _scalar(self, form: struct.Struct, what: str) -> Any:
        self.require(form.size, what)
        self.position += form.size
        return form.unpack_from(self.data, self.position - form.size)[0]

    def _not_utf8(self, what: str) -> ModelFileError:
        return ModelFileError(
            f"{self.path}: {what} is not UTF-8 text. The file is damaged; get it again."
        )
