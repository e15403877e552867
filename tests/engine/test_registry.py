"""What is read from a model file, and everything that is refused before weights are touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter

from engine.models.registry import FAMILIES, ModelOptions
from engine.models.rope import RopeOptions, Yarn
from engine.protocol.errors import ModelFileError, SetupError
from engine.protocol.settings import EngineSettings
from engine.runner.registry import open_executor, shape_of
from engine.weights.gguf import GgufFile
from tests.fakes.tiny_gguf import TinyModel, write_tiny_gguf


def options_of(path: Path, model: TinyModel) -> ModelOptions:
    write_tiny_gguf(path / "tiny.gguf", model)
    return ModelOptions.from_gguf(GgufFile.open(path / "tiny.gguf"))


def refusal(path: Path, model: TinyModel) -> str:
    with pytest.raises(ModelFileError) as caught:
        options_of(path, model)
    message = caught.value.message
    assert message.startswith(f"{path / 'tiny.gguf'}")
    assert "\n" not in message
    return message


def test_reads_every_option(tmp_path: Path) -> None:
    options = options_of(
        tmp_path,
        TinyModel(
            layers=3, hidden=96, intermediate=160, heads=6, kv_heads=3, head_dim=32, theta=5000.0,
            vocab_size=333, context=1024, tied=False, qkv_bias=True, output_bias=True,
        ),
    )  # fmt: skip
    assert options == ModelOptions(
        name="tiny", architecture="llama", layers=3, hidden=96, intermediate=160, heads=6,
        kv_heads=3, head_dim=32, vocab_size=333, context_length=1024,
        norm_epsilon=float(np.float32(1e-5)), rope=RopeOptions(theta=5000.0), tied=False,
        qkv_bias=True, output_bias=True, qk_norm=False, permuted=True, no_rope_interval=0,
    )  # fmt: skip


@pytest.mark.model
def test_reads_the_bundled_model(model_path: Path) -> None:
    options = ModelOptions.from_gguf(GgufFile.open(model_path))
    assert (options.layers, options.hidden, options.heads, options.kv_heads) == (30, 576, 9, 3)
    assert (options.head_dim, options.context_length, options.tied) == (64, 8192, True)


def test_defaults_of_what_old_files_leave_out(tmp_path: Path) -> None:
    absent = ("attention.key_length", "attention.value_length", "rope.freq_base",
              "rope.dimension_count", "attention.head_count_kv")  # fmt: skip
    model = TinyModel(kv_heads=4, metadata=dict.fromkeys(absent))
    options = options_of(tmp_path, model)
    assert (options.kv_heads, options.head_dim, options.rope.theta) == (4, 16, 10000.0)


def test_one_value_for_all_layers_may_be_a_list(tmp_path: Path) -> None:
    model = TinyModel(metadata={"attention.head_count_kv": [2, 2]})
    assert options_of(tmp_path, model).kv_heads == 2
    model = TinyModel(metadata={"attention.head_count_kv": [2, 4]})
    assert "head_count_kv must be a whole number" in refusal(tmp_path, model)


def test_a_sliding_window_bounds_the_context(tmp_path: Path) -> None:
    """Up to the window, windowed attention is full attention; beyond it we do not go."""
    windowed = TinyModel(context=512, metadata={"attention.sliding_window": 128})
    assert options_of(tmp_path, windowed).context_length == 128
    wide = TinyModel(context=512, metadata={"attention.sliding_window": 4096})
    assert options_of(tmp_path, wide).context_length == 512


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, RopeOptions(10000.0)),
        ({"rope.scaling.factor": 4.0}, RopeOptions(10000.0, linear_factor=4.0)),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0},
            RopeOptions(10000.0, yarn=Yarn(4.0, 128, 32.0, 1.0)),
        ),
        (
            {
                "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 100, "rope.scaling.yarn_beta_fast": 16.0,
                "rope.scaling.yarn_beta_slow": 2.0,
            },
            RopeOptions(10000.0, yarn=Yarn(4.0, 100, 16.0, 2.0)),
        ),
    ],
)  # fmt: skip
def test_rope_scaling(tmp_path: Path, metadata: dict[str, Any], expected: RopeOptions) -> None:
    assert options_of(tmp_path, TinyModel(metadata=metadata)).rope == expected


def test_an_unsupported_architecture_is_named(tmp_path: Path) -> None:
    message = refusal(tmp_path, TinyModel(architecture="gemma3"))
    assert "'gemma3' is not supported" in message
    for architecture in FAMILIES:
        assert architecture in message


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"expert_count": 8}, "llama.expert_count is 8"),
        ({"attention.causal": False}, "llama.attention.causal is False"),
        ({"attention.scale": 0.5}, "llama.attention.scale is 0.5"),
        ({"logit_scale": 0.25}, "llama.logit_scale is 0.25"),
        ({"rope.scaling.type": "longrope"}, "'longrope'; none, linear and yarn"),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0,
             "rope.scaling.yarn_ext_factor": 0.5},
            "yarn_ext_factor is 0.5",
        ),
        ({"rope.scaling.type": "yarn"}, "factor must be a number above 0, but is missing"),
        ({"rope.freq_base": 1.0}, "a base above 1"),
        ({"rope.dimension_count": 8}, "rope.dimension_count is 8"),
        ({"attention.value_length": 32}, "attention.value_length is 32"),
        ({"attention.head_count_kv": 3}, "4 attention heads cannot share 3"),
        ({"attention.key_length": 15}, "a head of 15 values"),
        ({"block_count": None}, "block_count must be a whole number from 1"),
        ({"block_count": 0}, "block_count must be a whole number from 1"),
        ({"block_count": "two"}, "but is 'two'"),
        ({"context_length": 2**31}, "context_length must be a whole number from 1 to 4194304"),
        ({"attention.layer_norm_rms_epsilon": float("nan")}, "must be a number above 0"),
        ({"attention.head_count": 128, "attention.key_length": None,
          "attention.head_count_kv": 1}, "attention.key_length must be"),
    ],
)  # fmt: skip
def test_what_cannot_be_computed_is_refused(
    tmp_path: Path, metadata: dict[str, Any], words: str
) -> None:
    assert words in refusal(tmp_path, TinyModel(metadata=metadata))


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"block_count": 3}, "'blk.2.attn_norm.weight' is missing"),
        ({"block_count": 1}, "'blk.1.attn_norm.weight' is not part of"),
        ({"block_count": 2**31 - 1}, "'blk.2.attn_norm.weight' is missing"),
        ({"embedding_length": 128}, "'token_embd.weight' has the shape (320, 64), but"),
        ({"feed_forward_length": 97}, "'blk.0.ffn_gate.weight' has the shape (96, 64), but"),
        ({"attention.head_count": 2, "attention.head_count_kv": 1}, "(64, 64), but the file's"),
    ],
)
def test_tensors_that_contradict_the_metadata(
    tmp_path: Path, metadata: dict[str, Any], words: str
) -> None:
    assert words in refusal(tmp_path, TinyModel(metadata=metadata))


def test_an_architecture_without_its_tensors(tmp_path: Path) -> None:
    assert "'blk.0.attn_q.bias' is missing" in refusal(tmp_path, TinyModel("qwen2"))
    assert "'blk.0.attn_q_norm.weight' is missing" in refusal(tmp_path, TinyModel("qwen3"))
    with_norm = TinyModel("llama", qk_norm=True)
    assert "'blk.0.attn_q_norm.weight' is not part of a llama" in refusal(tmp_path, with_norm)


def add_and_refuse(path: Path, name: str, kind: GGMLQuantizationType) -> str:
    writer = GGUFWriter(path, "llama")
    for key in ("block_count", "context_length", "feed_forward_length"):
        writer.add_uint32(f"llama.{key}", 1)
    writer.add_uint32("llama.embedding_length", 8)
    writer.add_uint32("llama.attention.head_count", 1)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tensor(name, np.zeros((16, 8), np.int8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFileError) as caught:
        ModelOptions.from_gguf(GgufFile.open(path))
    return caught.value.message


def test_an_unsupported_tensor_type_is_named(tmp_path: Path) -> None:
    message = add_and_refuse(tmp_path / "i8.gguf", "token_embd.weight", GGMLQuantizationType.I8)
    assert "'token_embd.weight' has the type I8, which is not supported" in message


def test_a_file_that_does_not_say_its_architecture(tmp_path: Path) -> None:
    path = tmp_path / "nothing.gguf"
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
    file = GgufFile.open(path)
    assert repr(file) == f"<GgufFile {path} 0 keys, 0 tensors>"
    with pytest.raises(ModelFileError, match=r"general\.architecture is missing"):
        ModelOptions.from_gguf(file)


def test_a_part_of_a_split_model(tmp_path: Path) -> None:
    path = tmp_path / "part.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_uint16("split.count", 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match=r"one of 3 parts\. Merge them"):
        ModelOptions.from_gguf(GgufFile.open(path))


def test_shape_counts_what_the_reference_executor_keeps(tmp_path: Path) -> None:
    model = TinyModel(layers=2, kv_heads=2, head_dim=16, type=GGMLQuantizationType.Q8_0)
    weights = write_tiny_gguf(tmp_path / "tiny.gguf", model)
    shape = shape_of(GgufFile.open(tmp_path / "tiny.gguf"), "reference")
    assert shape.weight_bytes == 4 * sum(values.size for values in weights.values())
    assert shape.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
    assert shape.activation_bytes_per_token > 4 * shape.vocab_size


def test_shape_and_refusals_need_no_torch(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", TinyModel())
    program = (
        "import sys\n"
        "from engine.runner.registry import shape_of\n"
        "from engine.weights.gguf import GgufFile\n"
        "shape_of(GgufFile.open(sys.argv[1]), 'reference')\n"
        "assert 'torch' not in sys.modules\n"
    )
    arguments = [sys.executable, "-c", program, str(tmp_path / "tiny.gguf")]
    subprocess.run(arguments, check=True, timeout=60)


def test_an_executor_that_does_not_exist(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", TinyModel())
    file = GgufFile.open(tmp_path / "tiny.gguf")
    with pytest.raises(SetupError, match="no executor 'tpu'; there are: auto, cpu, reference"):
        open_executor("tpu", file, EngineSettings())
    with pytest.raises(SetupError, match="no executor 'tpu'"):
        shape_of(file, "tpu")
