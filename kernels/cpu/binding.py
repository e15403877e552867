"""The native step as numpy sees it. Mirrors the structs of abi.h field by field."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.cpu.build import library

Bytes = NDArray[np.uint8]
Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

HEAD_DIMS = (64, 80, 96, 128)
MAX_QUERIES = 32
"""Heads that may share a KV head."""
MAX_LOGPROBS = 20


class Matrix(IntEnum):
    QUERY, KEY, VALUE, OUTPUT, GATE, UP, DOWN, EMBEDDING, HEAD = range(9)


class Kv(IntEnum):
    """What the KV memory holds; int8 has a float32 scale for each position's key and value."""

    BF16, INT8 = range(2)


class Vector(IntEnum):
    (
        ATTENTION_NORM, FEED_FORWARD_NORM, QUERY_BIAS, KEY_BIAS, VALUE_BIAS, OUTPUT_BIAS,
        QUERY_NORM, KEY_NORM, FINAL_NORM,
    ) = range(9)  # fmt: skip


class Config(ctypes.Structure):
    """The shape of a model and the limits of a step; see abi.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in (
            "layers", "hidden", "heads", "kv_heads", "head_dim", "feed_forward", "vocab",
            "max_rows", "max_positions", "threads", "kv", "no_rope_interval",
        )),
        ("epsilon", ctypes.c_float),
        ("attention_scale", ctypes.c_float),
    ]  # fmt: skip


class StepArrays(NamedTuple):
    """The flat batch of `engine.runner.base.Batch`: int32 arrays; sample_rows ascending."""

    tokens: Int32
    positions: Int32
    slots: Int32
    query_start: Int32
    context_len: Int32
    block_table: Int32
    sample_rows: Int32


class SampleParameters(NamedTuple):
    """How to sample one row; neutral values are those of `engine.protocol.sampling`.

    temperature: 0 is greedy
    logprobs:    how many alternatives to report; -1 for no logprobs
    prompt, output: ids, read where a penalty asks for them
    ending:      ids that are masked because they would end the output too early
    bias:        ids, with `bias_values` (float32) beside them
    mask:        uint32[ceil(vocab / 32)], the bit of every token that may come; None for all
    Arrays must be contiguous; the caller keeps them alive until the step has returned.
    """

    seed: int
    position: int
    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: int = -1
    prompt: Int32 | None = None
    output: Int32 | None = None
    allowed: Int32 | None = None
    bad: Int32 | None = None
    ending: Int32 | None = None
    bias: Int32 | None = None
    bias_values: Float32 | None = None
    mask: NDArray[np.uint32] | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step of R sampled rows gave.

    tokens:       int32[R], -1 where no token was left to choose
    logprobs:     float64[R], NaN unless asked for
    alternatives: int32[R], how many of the following are filled
    top_ids, top_logprobs: int32 and float32[R, MAX_LOGPROBS]
    logits:       float32[R, vocab], or [0, vocab] unless asked for
    """

    tokens: Int32
    logprobs: Float64
    alternatives: Int32
    top_ids: Int32
    top_logprobs: Float32
    logits: Float32


class NativeError(ValueError):
    """The native code refused its arguments; the message says which and why."""


class NativeModel:
    """Weights, KV memory and threads of one model. Used by one thread at a time.

    built: the library; None takes this processor's best, and compiles it if need be
    """

    def __init__(self, config: Config, built: Path | None = None) -> None:
        """Raises BuildError, and NativeError for a shape or limits that cannot be run."""
        self._library = _load(str(built or library()))
        self._vocab = config.vocab
        self._handle = self._library.fewer_cpu_create(ctypes.byref(config))
        if not self._handle:
            raise NativeError(self._library.fewer_cpu_error().decode())

    @property
    def isa(self) -> str:
        name: bytes = self._library.fewer_cpu_isa()
        return name.decode()

    def put_matrix(self, layer: int, which: Matrix, raw: Bytes, group_bytes: int) -> None:
        """Pack a whole matrix from its GGUF rows: uint8[rows, bytes of a row].

        group_bytes: 18 for Q4_0, 20 for Q4_1, 34 for Q8_0.
        """
        if raw.dtype != np.uint8:
            raise NativeError(f"encoded rows are bytes, not {raw.dtype}")
        raw = np.ascontiguousarray(raw)
        self._check(
            self._library.fewer_cpu_put_matrix(
                self._handle, layer, which, raw.ctypes.data, raw.size, group_bytes
            )
        )

    def put_vector(self, layer: int, which: Vector, values: Float32) -> None:
        values = np.ascontiguousarray(values, np.float32)
        self._check(
            self._library.fewer_cpu_put_vector(
                self._handle, layer, which, values.ctypes.data, values.size
            )
        )

    def put_rope(self, cosine: Float32, sine: Float32) -> None:
        """float32[max_positions, head_dim / 2] each."""
        cosine = np.ascontiguousarray(cosine, np.float32)
        sine = np.ascontiguousarray(sine, np.float32)
        if cosine.size != sine.size:
            raise NativeError("the rope tables differ in size")
        self._check(
            self._library.fewer_cpu_put_rope(
                self._handle, cosine.ctypes.data, sine.ctypes.data, cosine.size
            )
        )

    def allocate_kv(self, blocks: int) -> None:
        self._check(self._library.fewer_cpu_allocate_kv(self._handle, blocks))

    def step(
        self, arrays: StepArrays, samples: list[SampleParameters] | None, *, logits: bool = False
    ) -> StepResult:
        """Compute one step and sample its rows.

        samples: one for each of `arrays.sample_rows`; None samples nothing
        logits:  also return the logits of those rows
        """
        count = len(arrays.sample_rows)
        if samples is not None and len(samples) != count:
            raise NativeError(f"{count} rows to sample, but parameters for {len(samples)}")
        for sample in samples or ():
            _check_mask(sample.mask, self._vocab)
        batch, keep = _batch(arrays)
        sampled = np.zeros(count, _SAMPLED)
        top_ids = np.empty((count, MAX_LOGPROBS), np.int32)
        top_logprobs = np.empty((count, MAX_LOGPROBS), np.float32)
        wanted = np.empty((count if logits else 0, self._vocab), np.float32)
        rows = bytearray(b"".join(map(_pack_row, samples))) if samples else bytearray()
        outcome = _Outcome(
            ctypes.addressof(ctypes.c_char.from_buffer(rows)) if rows else None,
            _address(sampled),
            _address(top_ids),
            _address(top_logprobs),
            _address(wanted) if logits else None,
        )
        self._check(
            self._library.fewer_cpu_step(self._handle, ctypes.byref(batch), ctypes.byref(outcome))
        )
        del keep
        return StepResult(
            sampled["token"],
            sampled["logprob"],
            sampled["alternatives"],
            top_ids,
            top_logprobs,
            wanted,
        )

    def close(self) -> None:
        """Give the memory back and end the threads. Safe to call twice."""
        if self._handle:
            self._library.fewer_cpu_destroy(self._handle)
            self._handle = None

    def _check(self, status: int) -> None:
        if status != 0:
            raise NativeError(self._library.fewer_cpu_error().decode())


class _Batch(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("rows", "segments", "table_width", "samples")),
        *((name, ctypes.c_void_p) for name in StepArrays._fields),
    ]


class _Outcome(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_void_p) for name in ("rows", "sampled", "top_ids", "top_logprobs", "logits")
    ]


_SAMPLED = np.dtype([("logprob", np.float64), ("token", np.int32), ("alternatives", np.int32)])
_SAMPLE_ROW = struct.Struct("=QqdddddfiixxxxQqQqQqQqQqQqQQ")
_MASK_64 = (1 << 64) - 1


def _pack_row(row: SampleParameters) -> bytes:
    """One SampleRow of abi.h."""
    if row.bias is not None:
        given = 0 if row.bias_values is None else len(row.bias_values)
        if given != len(row.bias):
            raise NativeError(f"bias has {len(row.bias)} ids, but {given} values")
    if row.bias_values is not None and row.bias_values.dtype != np.float32:
        raise NativeError("bias values must be float32")
    return _SAMPLE_ROW.pack(
        row.seed & _MASK_64, row.position, row.top_p, row.min_p,
        row.repetition_penalty, row.presence_penalty, row.frequency_penalty,
        row.temperature, row.top_k, row.logprobs,
        *_ids(row.prompt), *_ids(row.output), *_ids(row.allowed),
        *_ids(row.bad), *_ids(row.ending), *_ids(row.bias),
        0 if row.bias_values is None else _address(row.bias_values),
        0 if row.mask is None else _address(row.mask),
    )  # fmt: skip


def _check_mask(mask: NDArray[np.uint32] | None, vocab: int) -> None:
    if mask is None:
        return
    if mask.dtype != np.uint32 or mask.shape != (-(-vocab // 32),) or not mask.flags.c_contiguous:
        raise NativeError(f"a mask must be one bit for each of {vocab} tokens, as uint32")


def _ids(values: Int32 | None) -> tuple[int, int]:
    if values is None:
        return 0, -1
    if values.dtype != np.int32 or not values.flags.c_contiguous:
        raise NativeError("token ids of sampling parameters must be int32, side by side")
    return _address(values), len(values)


def _address(array: NDArray[np.generic]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _batch(arrays: StepArrays) -> tuple[_Batch, list[Int32]]:
    """The batch, and the contiguous arrays that it points into."""
    if arrays.block_table.ndim != 2:
        raise NativeError("block_table must have two dimensions")
    keep = [np.ascontiguousarray(a, np.int32) for a in arrays]
    rows, segments = len(arrays.tokens), len(arrays.context_len)
    width = arrays.block_table.shape[1]
    sizes = (rows, rows, rows, segments + 1, segments, segments * width, len(arrays.sample_rows))
    if any(a.size != size for a, size in zip(keep, sizes, strict=True)):
        raise NativeError("the arrays of a batch disagree about its size")
    batch = _Batch(rows, segments, width, len(arrays.sample_rows), *map(_address, keep))
    return batch, keep


@cache
def _load(path: str) -> ctypes.CDLL:
    loaded = ctypes.CDLL(path)
    pointer, integer, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
    signatures: dict[str, tuple[object, list[object]]] = {
        "isa": (ctypes.c_char_p, []),
        "error": (ctypes.c_char_p, []),
        "create": (pointer, [pointer]),
        "destroy": (None, [pointer]),
        "put_matrix": (integer, [pointer, integer, integer, pointer, size, integer]),
        "put_vector": (integer, [pointer, integer, integer, pointer, size]),
        "put_rope": (integer, [pointer, pointer, pointer, size]),
        "allocate_kv": (integer, [pointer, integer]),
        "step": (integer, [pointer, pointer, pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(loaded, f"fewer_cpu_{name}")
        function.restype, function.argtypes = result, arguments
    return loaded
