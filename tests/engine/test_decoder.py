"""Every member of the Llama family against its implementation in `transformers`, in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from engine.models.registry import ModelOptions
from engine.models.rope import RopeOptions, Yarn, rope_tables
from engine.runner.reference import ReferenceExecutor
from engine.weights.gguf import GgufFile
from tests.engine.hugging_face import logits, oracle
from tests.fakes.steps import batch_of, blocks_for, lanes_of
from tests.fakes.tiny_gguf import TinyModel, write_tiny_gguf

TOKENS = np.random.default_rng(7).integers(0, 320, 90).tolist()


def llama3_divisors(theta: float, head_dim: int, original: int) -> tuple[float, ...]:
    """What llama.cpp's converter writes into rope_freqs.weight; factor 8, low 1, high 4."""
    divisors = []
    for index in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (index / head_dim)
        if wavelength < original / 4:
            divisors.append(1.0)
        elif wavelength > original / 1:
            divisors.append(8.0)
        else:
            smooth = (original / wavelength - 1) / (4 - 1)
            divisors.append(1 / ((1 - smooth) / 8 + smooth))
    return tuple(divisors)


@dataclass(frozen=True)
class Case:
    """kind: the oracle; scaling: its rope parameters beside the base."""

    kind: str
    model: TinyModel
    scaling: Mapping[str, Any] = field(default_factory=dict)


YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 32}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip
CASES = {
    "llama": Case("llama", TinyModel()),
    "llama-untied-64": Case(
        "llama", TinyModel(head_dim=64, heads=3, kv_heads=1, hidden=96, tied=False)
    ),
    "llama-80": Case("llama", TinyModel(head_dim=80, heads=2, kv_heads=2)),
    "llama-96": Case("llama", TinyModel(head_dim=96, heads=2, kv_heads=1)),
    "llama-128": Case("llama", TinyModel(head_dim=128, heads=4, kv_heads=2, layers=3)),
    "llama-biases": Case("llama", TinyModel(qkv_bias=True, output_bias=True)),
    "llama-linear": Case(
        "llama",
        TinyModel(metadata={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
        {"rope_type": "linear", "factor": 4.0},
    ),
    "llama3": Case(
        "llama",
        TinyModel(head_dim=32, theta=500000.0, divisors=llama3_divisors(500000.0, 32, 64)),
        LLAMA3,
    ),
    "mistral": Case("mistral", TinyModel(head_dim=32, heads=4, kv_heads=1, tied=False)),
    "mistral3": Case("mistral", TinyModel("mistral3", head_dim=32, tied=False)),
    "mistral-window": Case("mistral", TinyModel(metadata={"attention.sliding_window": 96})),
    "qwen2": Case("qwen2", TinyModel("qwen2", qkv_bias=True, theta=1e6, epsilon=1e-6)),
    "qwen2-yarn": Case(
        "qwen2",
        TinyModel("qwen2", qkv_bias=True, head_dim=32, metadata=YARN),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    ),
    "qwen3": Case("qwen3", TinyModel("qwen3", qk_norm=True, head_dim=32, tied=False)),
    "smollm3": Case("smollm3", TinyModel("smollm3", layers=5)),
}
TYPES = ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


def our_logits(path: Path) -> Any:
    file = GgufFile.open(path)
    executor = ReferenceExecutor(file, ModelOptions.from_gguf(file), threads=1)
    executor.allocate(blocks_for([TOKENS], len(TOKENS)))
    (lane,) = lanes_of([TOKENS], len(TOKENS))
    parts = []
    for count in (50, 1, 39):
        parts.append(executor.logits(batch_of([(lane, count)], sample_all=True)).numpy())
    executor.close()
    return np.concatenate(parts)


def assert_equals_oracle(path: Path, case: Case) -> None:
    weights = write_tiny_gguf(path, case.model)
    expected = logits(oracle(case.kind, case.model, weights, case.scaling), TOKENS)
    # Both keep norms and rotation in float32: a few of its roundings, over logits of size 10.
    np.testing.assert_allclose(our_logits(path), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_equals_transformers(name: str, tmp_path: Path) -> None:
    assert_equals_oracle(tmp_path / "tiny.gguf", CASES[name])


@pytest.mark.parametrize("kind", TYPES)
def test_equals_transformers_on_every_encoding(kind: str, tmp_path: Path) -> None:
    model = TinyModel(
        hidden=96, heads=3, kv_heads=1, head_dim=32, type=GGMLQuantizationType[kind], tied=False
    )
    assert_equals_oracle(tmp_path / "tiny.gguf", Case("llama", model))


def test_the_oracle_tells_a_wrong_option(tmp_path: Path) -> None:
    """Neither a missed rotation nor a missed scaling hides below the tolerance."""
    path = tmp_path / "tiny.gguf"
    for case, wrong in (
        (CASES["llama"], replace(CASES["llama"].model, theta=9000.0)),
        (CASES["qwen2-yarn"], replace(CASES["qwen2-yarn"].model, metadata={})),
        (CASES["llama3"], replace(CASES["llama3"].model, divisors=())),
    ):
        weights = write_tiny_gguf(path, wrong)
        expected = logits(oracle(case.kind, case.model, weights, case.scaling), TOKENS)
        assert np.abs(our_logits(path) - expected).max() > 1e-2


def test_rope_tables_keep_their_precision_at_the_end_of_the_window() -> None:
    cos, sin = rope_tables(RopeOptions(100000.0), 64, 8192, None)
    angle = 8191 * 100000.0 ** (-2 * 5 / 64)
    assert cos.shape == (8192, 32)
    assert cos[8191, 5] == np.float32(math.cos(angle))
    assert sin[8191, 5] == np.float32(math.sin(angle))


def test_yarn_keeps_fast_pairs_and_slows_slow_ones() -> None:
    plain, _ = rope_tables(RopeOptions(10000.0), 128, 64, None)
    scaled, _ = rope_tables(RopeOptions(10000.0, yarn=Yarn(4.0, 4096, 32.0, 1.0)), 128, 64, None)
    temperature = 0.1 * math.log(4.0) + 1.0
    np.testing.assert_allclose(scaled[:, 0], temperature * plain[:, 0], rtol=1e-6)
    np.testing.assert_allclose(scaled[40, -1], temperature * plain[10, -1], rtol=1e-6)
