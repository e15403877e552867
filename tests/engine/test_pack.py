"""Packing: what is 4 or 8 bit already keeps every bit, the rest loses what is stated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from engine.weights import pack
from engine.weights.gguf import GgufFile
from engine.weights.pack import packed, packed_type

ROWS, COLUMNS = 40, 512
RNG = np.random.default_rng(5)
Bytes = NDArray[np.uint8]


def random_values() -> NDArray[np.float32]:
    """Groups of very different size, one of zeros."""
    values = RNG.normal(size=(ROWS, COLUMNS // 32, 32)) * 10.0 ** RNG.uniform(-3, 1, (ROWS, 16, 1))
    values[3, 2] = 0
    return values.reshape(ROWS, COLUMNS).astype(np.float32)


def random_blocks(kind: Type) -> Bytes:
    """A K-quant of random bits, with scales of a real model's size."""
    size, size_bytes = GGML_QUANT_SIZES[kind]
    blocks = RNG.integers(0, 256, (ROWS * COLUMNS // size, size_bytes), np.uint8)
    scales = {Type.Q4_K: slice(0, 4), Type.Q5_K: slice(0, 4), Type.Q6_K: slice(-2, None)}[kind]
    halves = RNG.uniform(1e-4, 1e-3, (len(blocks), blocks[:, scales].shape[1] // 2))
    blocks[:, scales] = halves.astype(np.float16).view(np.uint8)
    return blocks.reshape(ROWS, -1)


def encoded_as(kind: Type) -> Bytes:
    if kind in (Type.Q4_K, Type.Q5_K, Type.Q6_K):
        return random_blocks(kind)
    return quantize(random_values(), kind).view(np.uint8)


def open_with(path: Path, encoded: Bytes, kind: Type) -> GgufFile:
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("w", encoded, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile.open(path)


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1, Type.Q8_0])
def test_four_and_eight_bits_stay_byte_for_byte(kind: Type, tmp_path: Path) -> None:
    encoded = encoded_as(kind)
    file = open_with(tmp_path / "w.gguf", encoded, kind)
    raw, taken = packed(file, "w")
    assert taken is kind is packed_type(kind)
    assert np.array_equal(raw, encoded)


def test_q4_k_moves_by_an_fp16_rounding(tmp_path: Path) -> None:
    file = open_with(tmp_path / "w.gguf", encoded_as(Type.Q4_K), Type.Q4_K)
    raw, taken = packed(file, "w")
    assert taken is Type.Q4_1 is packed_type(Type.Q4_K)
    groups = raw.reshape(-1, 20)[:, :4].copy().view(np.float16).astype(np.float64)
    allowed = 2.0**-11 * (15 * np.abs(groups[:, 0]) + np.abs(groups[:, 1]))
    moved = np.abs(dequantize(raw, Type.Q4_1) - file.dequantized("w")).reshape(-1, 32).max(axis=1)
    assert (moved <= 1.01 * allowed).all()
    assert moved.max() > 0


@pytest.mark.parametrize(
    "kind", [Type.F32, Type.F16, Type.BF16, Type.Q5_0, Type.Q5_1, Type.Q5_K, Type.Q6_K]
)
def test_the_rest_becomes_q8_0_within_its_step(
    kind: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "_SLAB_VALUES", 3 * COLUMNS)  # 13 slabs and a rest
    file = open_with(tmp_path / "w.gguf", encoded_as(kind), kind)
    raw, taken = packed(file, "w")
    assert taken is Type.Q8_0 is packed_type(kind)
    values = file.dequantized("w")
    assert np.array_equal(raw, quantize(values, Type.Q8_0))
    moved = np.abs(dequantize(raw, Type.Q8_0) - values).reshape(-1, 32).max(axis=1)
    assert (moved <= 2.0**-7 * np.abs(values).reshape(-1, 32).max(axis=1)).all()


def test_matrices_that_must_agree_can_all_be_had_as_q8_0(tmp_path: Path) -> None:
    file = open_with(tmp_path / "w.gguf", encoded_as(Type.Q4_1), Type.Q4_1)
    raw, taken = packed(file, "w", Type.Q8_0)
    assert taken is Type.Q8_0
    assert np.array_equal(raw, quantize(file.dequantized("w"), Type.Q8_0))
