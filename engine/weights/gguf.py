"""GGUF model files: metadata and tensors, read through a memory map.

The `gguf` package knows the constants and how to dequantise; its reader takes seconds on a
vocabulary of 49,152 and believes every number in the file, so the reading is ours. A file that
opens here is complete: every tensor lies inside it.
"""

from __future__ import annotations

import functools
import math
import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from engine.protocol.errors import ModelFileError
from engine.weights.cursor import Cursor

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_FIXED_HEADER_BYTES = 24
_SMALLEST_ENTRY_BYTES = 13  # a key of no characters: uint64 length, uint32 type, one byte
_SMALLEST_TENSOR_BYTES = 24  # a name of no characters, no dimensions, type, offset
_MAX_DIMENSIONS = 4
_DEFAULT_ALIGNMENT_BYTES = 32
_SLAB_VALUES = 1 << 17


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies.

    shape:        row-major as in numpy; the last dimension is the one that quantisation groups
    type:         GGML's number for the encoding
    offset_bytes: from the start of the file
    size_bytes:   as encoded in the file
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset_bytes: int
    size_bytes: int


class GgufFile:
    """One opened model file. The map is given back when this and all arrays from it are gone.

    path:     the file
    metadata: key -> int, float, bool, str, or a list of one of them
    tensors:  name -> where it lies, in the file's order
    """

    def __init__(
        self, path: Path, data: mmap.mmap, metadata: dict[str, Any], tensors: dict[str, TensorInfo]
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = tensors
        self._data = data

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GgufFile:
        """Map and check the file. Raises `ModelFileError` when it is missing, cut or no GGUF."""
        data = _map(Path(path))
        cursor = Cursor(data, str(path))
        tensor_count, entry_count = _read_counts(cursor)
        metadata = _read_metadata(cursor, entry_count)
        tensors = _read_tensors(cursor, tensor_count, _alignment(cursor, metadata))
        return cls(Path(path), data, metadata, tensors)

    def __repr__(self) -> str:
        return f"<GgufFile {self.path} {len(self.metadata)} keys, {len(self.tensors)} tensors>"

    def info(self, name: str) -> TensorInfo:
        """Raises `ModelFileError` naming the tensor when the file has none of that name."""
        try:
            return self.tensors[name]
        except KeyError:
            raise ModelFileError(f"{self.path}: the tensor {name!r} is missing.") from None

    def raw(self, name: str) -> NDArray[np.uint8]:
        """uint8[..., bytes of one row]: the encoded tensor, a read-only view of the map."""
        info = self.info(name)
        flat = np.frombuffer(self._data, np.uint8, info.size_bytes, info.offset_bytes)
        return flat.reshape(*info.shape[:-1], -1)

    def dequantized(self, name: str) -> NDArray[np.float32]:
        """float32[shape], a copy. Raises `ModelFileError` for an encoding without a decoder."""
        info = self.info(name)
        if not can_decode(info.type):
            raise ModelFileError(
                f"{self.path}: the tensor {name!r} has the type {info.type.name}, which is not "
                "supported. Use a file in Q8_0, Q4_K or F16, for example."
            )
        groups = self.raw(name).reshape(-1, GGML_QUANT_SIZES[info.type][1])
        values = np.empty((len(groups), GGML_QUANT_SIZES[info.type][0]), np.float32)
        slab = max(1, _SLAB_VALUES // values.shape[1])
        # The package decodes 16 rows a call. Rows do not matter to it, so we give it long ones,
        # few enough at a time for the temporaries to stay in the cache.
        for start in range(0, len(groups), slab):
            part = groups[start : start + slab].reshape(1, -1)
            values[start : start + slab] = dequantize(part, info.type).reshape(-1, values.shape[1])
        return values.reshape(info.shape)


@functools.cache
def can_decode(kind: GGMLQuantizationType) -> bool:
    """Whether the gguf package can dequantise this type."""
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _map(path: Path) -> mmap.mmap:
    """The file's bytes, read-only. At least the fixed header is there."""
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ModelFileError(f"{path} is not a regular file. Name a .gguf file.")
            if status.st_size < _FIXED_HEADER_BYTES:
                raise ModelFileError(
                    f"{path}: the header needs {_FIXED_HEADER_BYTES} bytes, but the file has "
                    f"{status.st_size}. The file is cut short; get it again."
                )
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}.") from error


def _open_without_waiting(path: str, flags: int) -> int:
    # A named pipe would block until somebody writes to it.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _read_counts(cursor: Cursor) -> tuple[int, int]:
    """Check magic and version. Returns how many tensors and how many metadata entries follow."""
    magic = cursor.data[:4]
    if magic != _MAGIC:
        raise ModelFileError(
            f"{cursor.path} is not a GGUF file: it starts with {magic!r} and not {_MAGIC!r}."
        )
    cursor.position = 4
    version = cursor.uint32("the version")
    if version not in _VERSIONS:
        order = " (big-endian)" if version & 0xFFFF == 0 else ""
        raise ModelFileError(
            f"{cursor.path}: GGUF version {version}{order} is not supported; 2 and 3 are, "
            "little-endian."
        )
    tensor_count = cursor.uint64("the tensor count")
    entry_count = cursor.uint64("the metadata count")
    cursor.require(
        tensor_count * _SMALLEST_TENSOR_BYTES + entry_count * _SMALLEST_ENTRY_BYTES,
        f"a header of {tensor_count} tensors and {entry_count} metadata entries",
    )
    return tensor_count, entry_count


def _read_metadata(cursor: Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(count):
        key = cursor.name(f"metadata key {index}")
        if key in metadata:
            raise ModelFileError(f"{cursor.path}: the metadata key {key!r} occurs twice.")
        metadata[key] = cursor.value(f"the metadata value {key!r}")
    return metadata


def _alignment(cursor: Cursor, metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT_BYTES)
    if type(alignment) is not int or alignment < 8 or alignment % 8:
        raise ModelFileError(
            f"{cursor.path}: general.alignment must be a multiple of 8, not {alignment!r}."
        )
    return alignment


def _read_tensors(cursor: Cursor, count: int, alignment_bytes: int) -> dict[str, TensorInfo]:
    relative = [_read_tensor(cursor, index) for index in range(count)]
    data_start = -(-cursor.position // alignment_bytes) * alignment_bytes
    tensors: dict[str, TensorInfo] = {}
    for name, shape, kind, offset_bytes in relative:
        if name in tensors:
            raise ModelFileError(f"{cursor.path}: the tensor {name!r} occurs twice.")
        size_bytes = _size_bytes(cursor, name, shape, kind)
        if offset_bytes % alignment_bytes:
            raise ModelFileError(
                f"{cursor.path}: the tensor {name!r} starts at {offset_bytes}, which is not a "
                f"multiple of the alignment {alignment_bytes}. The file is damaged; get it again."
            )
        end = data_start + offset_bytes + size_bytes
        if end > len(cursor.data):
            raise ModelFileError(
                f"{cursor.path}: the tensor {name!r} needs {size_bytes} bytes up to offset "
                f"{end}, but the file has {len(cursor.data)} bytes. "
                "The file is cut short or damaged; get it again."
            )
        tensors[name] = TensorInfo(name, shape, kind, data_start + offset_bytes, size_bytes)
    return tensors


def _read_tensor(
    cursor: Cursor, index: int
) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
    """One entry of the tensor list: name, row-major shape, type, offset in the data section."""
    name = cursor.name(f"the name of tensor {index}")
    what = f"the entry of the tensor {name!r}"
    dimensions = cursor.uint32(what)
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise ModelFileError(
            f"{cursor.path}: the tensor {name!r} has {dimensions} dimensions; 1 to "
            f"{_MAX_DIMENSIONS} are possible. The file is damaged; get it again."
        )
    # GGML lists the fastest dimension first.
    shape = tuple(reversed([cursor.uint64(what) for _ in range(dimensions)]))
    number = cursor.uint32(what)
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise ModelFileError(
            f"{cursor.path}: the tensor {name!r} has the unknown type {number}. It needs a newer "
            "version of the gguf package, or the file is damaged."
        ) from None
    return name, shape, kind, cursor.uint64(what)


def _size_bytes(
    cursor: Cursor, name: str, shape: tuple[int, ...], kind: GGMLQuantizationType
) -> int:
    """Encoded size. Groups run along a row, so the row must be a whole number of them."""
    group, group_bytes = GGML_QUANT_SIZES[kind]
    if 0 in shape:
        raise ModelFileError(f"{cursor.path}: the tensor {name!r} is empty: its shape is {shape}.")
    if shape[-1] % group:
        raise ModelFileError(
            f"{cursor.path}: the tensor {name!r} has rows of {shape[-1]} values, which groups of "
            f"{group} ({kind.name}) do not divide."
        )
    return math.prod(shape) // group * group_bytes
