"""The GGUF reader: right on good files, one line of error on every damaged one (B49)."""

from __future__ import annotations

import contextlib
import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol.errors import ModelFileError
from engine.weights.gguf import GgufFile, can_decode
from tests.fakes.tiny_gguf import TinyModel, write_tiny_gguf

DECODABLE = [kind for kind in GGMLQuantizationType if can_decode(kind)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_tiny_gguf(path, TinyModel(type=GGMLQuantizationType.Q8_0))
    return path


@pytest.fixture(scope="module")
def tiny_bytes(tiny: Path) -> bytes:
    return tiny.read_bytes()


def refusal(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(ModelFileError) as caught:
        GgufFile.open(path)
    message = caught.value.message
    assert str(path) in message
    assert "\n" not in message
    assert message.endswith(".")
    return message


def header(tensors: int = 0, entries: int = 0, magic: bytes = b"GGUF", version: int = 3) -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, entries)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def tensor(name: bytes, shape: tuple[int, ...], kind: int, offset: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


def test_agrees_with_the_gguf_package(tiny: Path) -> None:
    file, oracle = GgufFile.open(tiny), GGUFReader(tiny)
    expected = {
        key: field.contents() for key, field in oracle.fields.items() if not key.startswith("GGUF.")
    }
    assert file.metadata == expected
    assert list(file.tensors) == [tensor.name for tensor in oracle.tensors]
    for other in oracle.tensors:
        info = file.tensors[other.name]
        assert info.shape == tuple(reversed(other.shape.tolist()))
        assert (info.offset_bytes, info.type) == (other.data_offset, other.tensor_type)
        assert file.raw(other.name).tobytes() == other.data.tobytes()


@pytest.mark.model
def test_the_bundled_file_opens_at_once(model_path: Path) -> None:
    file = GgufFile.open(model_path)
    assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152
    assert file.tensors["token_embd.weight"].shape == (49152, 576)


def test_every_kind_of_metadata(tmp_path: Path) -> None:
    path = tmp_path / "kinds.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -32768)
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int32("i32", -(2**31))
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 1e300)
    writer.add_bool("yes", True)
    writer.add_bool("no", False)
    writer.add_string("text", "Zażółć 🧵\x00")
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("words", ["a", "", "語"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = GgufFile.open(path).metadata
    del metadata["general.architecture"]
    assert metadata == {
        "u8": 255, "i8": -128, "u16": 65535, "i16": -32768, "u32": 2**32 - 1, "i32": -(2**31),
        "u64": 2**64 - 1, "i64": -(2**63), "f32": 0.5, "f64": 1e300, "yes": True, "no": False,
        "text": "Zażółć 🧵\x00", "numbers": [1, -2, 3], "words": ["a", "", "語"],
    }  # fmt: skip
    assert metadata["yes"] is True


@pytest.mark.parametrize("kind", DECODABLE, ids=lambda kind: kind.name)
def test_dequantises_as_the_package_does(kind: GGMLQuantizationType, tmp_path: Path) -> None:
    group, group_bytes = GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(kind.value)
    # More than one slab, and a last one that is not full.
    raw = rng.integers(0, 256, (37, group_bytes * (8192 // group)), np.uint8)
    path = tmp_path / "quantised.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("t", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with np.errstate(all="ignore"):  # random bytes are NaNs and infinities too
        np.testing.assert_array_equal(
            GgufFile.open(path).dequantized("t"), dequantize(raw, kind).astype(np.float32)
        )


def test_known_encodings_can_be_decoded() -> None:
    names = {kind.name for kind in DECODABLE}
    assert names >= {
        "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K",
    }  # fmt: skip
    assert "I8" not in names


def test_an_encoding_without_a_decoder_is_named(tmp_path: Path) -> None:
    path = tmp_path / "integers.gguf"
    path.write_bytes(header(tensors=1) + tensor(b"t", (8,), GGMLQuantizationType.I8) + bytes(64))
    with pytest.raises(ModelFileError, match=r"'t' has the type I8, which is not supported"):
        GgufFile.open(path).dequantized("t")


def test_a_missing_tensor_is_named(tiny: Path) -> None:
    with pytest.raises(ModelFileError, match="'nothing' is missing"):
        GgufFile.open(tiny).raw("nothing")


def test_cut_at_sixty_percent_names_tensor_needed_and_found(
    tmp_path: Path, tiny: Path, tiny_bytes: bytes
) -> None:
    size = len(tiny_bytes) * 6 // 10
    tensors = GgufFile.open(tiny).tensors.values()
    first_lost = next(info for info in tensors if info.offset_bytes + info.size_bytes > size)
    message = refusal(tmp_path / "cut.gguf", tiny_bytes[:size])
    assert f"{first_lost.name!r} needs {first_lost.size_bytes} bytes" in message
    assert f"offset {first_lost.offset_bytes + first_lost.size_bytes}" in message
    assert f"has {size} bytes" in message


def test_cut_after_a_hundred_bytes(tmp_path: Path, tiny_bytes: bytes) -> None:
    message = refusal(tmp_path / "cut.gguf", tiny_bytes[:124])
    assert "metadata" in message
    assert "at 124" in message


def test_empty(tmp_path: Path) -> None:
    assert "24 bytes, but the file has 0" in refusal(tmp_path / "empty.gguf", b"")


@pytest.mark.parametrize("place", range(4))
def test_one_byte_of_the_magic_changed(tmp_path: Path, tiny_bytes: bytes, place: int) -> None:
    damaged = bytearray(tiny_bytes)
    damaged[place] ^= 1
    assert "is not a GGUF file" in refusal(tmp_path / "magic.gguf", bytes(damaged))


def test_offset_beyond_the_file(tmp_path: Path) -> None:
    data = header(tensors=1) + tensor(b"blk.0.x", (8,), 0, 1 << 40) + bytes(64)
    message = refusal(tmp_path / "offset.gguf", data)
    assert "'blk.0.x' needs 32 bytes" in message
    assert f"has {len(data)} bytes" in message


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (header(tensors=2**60), f"{2**60} tensors"),
        (header(entries=2**60), f"{2**60} metadata entries"),
        (header(entries=1) + struct.pack("<Q", 2**63) + bytes(64), f"length of {2**63} bytes"),
        (header(entries=1) + text(b"k") + struct.pack("<IQ", 8, 2**63) + bytes(64), f"{2**63}"),
        (
            header(entries=1) + text(b"k") + struct.pack("<IIQ", 9, 4, 2**60) + bytes(64),
            f"{2**60} elements",
        ),
        (
            header(entries=1) + text(b"k") + struct.pack("<IIQ", 9, 8, 2**24) + bytes(64),
            f"needs {2**27} bytes",
        ),
        (header(tensors=1) + tensor(b"t", (2**40, 2**40), 0) + bytes(64), "'t' needs"),
    ],
    ids=["tensors", "entries", "key", "string", "array", "strings", "shape"],
)
def test_a_huge_count_takes_no_memory(tmp_path: Path, data: bytes, words: str) -> None:
    tracemalloc.start()
    message = refusal(tmp_path / "huge.gguf", data)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert words in message
    assert peak_bytes < 1 << 20


KEY = text(b"k")
ONE_BYTE = struct.pack("<IB", 0, 1)
TWO_STRINGS = struct.pack("<IIQ", 9, 8, 2)
DAMAGE = {
    "old": (header(version=1), "version 1 is not supported"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "unknown type": (header(1) + tensor(b"t", (8,), 4711), "'t' has the unknown type 4711"),
    "broken group": (header(1) + tensor(b"t", (48,), 2), "rows of 48 values, which groups of 32"),
    "empty": (header(1) + tensor(b"t", (8, 0), 0), "'t' is empty"),
    "no dimensions": (header(1) + tensor(b"t", (), 0), "0 dimensions"),
    "five dimensions": (header(1) + tensor(b"t", (1,) * 5, 0), "5 dimensions"),
    "unaligned": (header(1) + tensor(b"t", (8,), 0, 7), "not a multiple of the alignment"),
    "tensor twice": (header(2) + tensor(b"t", (8,), 0) * 2, "'t' occurs twice"),
    "key twice": (header(0, 2) + (KEY + ONE_BYTE) * 2, "'k' occurs twice"),
    "value type": (header(0, 1) + KEY + struct.pack("<I", 77), "unknown value type 77"),
    "array of arrays": (header(0, 1) + KEY + struct.pack("<IIQ", 9, 9, 1), "array of type 9"),
    "key not text": (header(0, 1) + text(b"\xff"), "key 0 is not UTF-8"),
    "value not text": (
        header(0, 1) + KEY + TWO_STRINGS + text(b"a") + text(b"\xff"),
        "string 1 of the metadata value 'k' is not UTF-8",
    ),
    "alignment": (
        header(0, 1) + text(b"general.alignment") + struct.pack("<II", 4, 0),
        "general.alignment must be a multiple of 8",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named(tmp_path: Path, kind: str) -> None:
    """B49, and R33: groups that do not divide the width."""
    data, words = DAMAGE[kind]
    assert words in refusal(tmp_path / "damaged.gguf", data + bytes(256))


def test_what_is_not_a_readable_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    for path, words in (
        (tmp_path / "absent.gguf", "cannot be read: No such file"),
        (tmp_path, "directory"),
        (pipe, "not a regular file"),
    ):
        with pytest.raises(ModelFileError, match=words):
            GgufFile.open(path)


@settings(max_examples=300, deadline=None)
@given(
    cut=st.floats(0, 1),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6),
)
def test_no_damage_gives_another_error(
    tiny_bytes: bytes, tmp_path_factory: pytest.TempPathFactory, cut: float,
    changes: list[tuple[float, int]],
) -> None:  # fmt: skip
    """Random cuts and changed bytes: it opens, or it says why not."""
    damaged = bytearray(tiny_bytes[: round(cut * len(tiny_bytes))])
    header_bytes = min(len(damaged), 12000)
    for place, value in changes:
        if header_bytes:
            damaged[int(place * header_bytes)] = value
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(damaged)
    with contextlib.suppress(ModelFileError):
        file = GgufFile.open(path)
        for name in file.tensors:
            file.raw(name)
