"""Small models with random weights, straight into the native step: no file, no engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf.constants import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from engine.runner.base import Batch
from kernels.cpu.binding import Config, Kv, Matrix, NativeModel, StepArrays, Vector
from tests.fakes.steps import Lane, batch_of

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
GROUP_BYTES = {Type.Q4_0: 18, Type.Q4_1: 20, Type.Q8_0: 34}


@dataclass(frozen=True)
class Shape:
    """What to build.

    type:    of every matrix but the embedding, which is Q8_0
    epsilon: of the norms; large, so that a norm without it is told apart
    """

    layers: int = 2
    hidden: int = 64
    heads: int = 3
    kv_heads: int = 1
    head_dim: int = 64
    feed_forward: int = 96
    vocab: int = 150
    tied: bool = True
    biases: bool = False
    qk_norm: bool = False
    no_rope_interval: int = 0
    type: Type = Type.Q4_1
    positions: int = 256
    epsilon: float = 0.1
    kv: Kv = Kv.BF16
    seed: int = 0


@dataclass(frozen=True)
class Weights:
    """The encoded matrices, and every weight as decoded, by (layer, which)."""

    encoded: dict[tuple[int, Matrix], tuple[NDArray[np.uint8], Type]] = field(default_factory=dict)
    matrices: dict[tuple[int, Matrix], Float64] = field(default_factory=dict)
    vectors: dict[tuple[int, Vector], Float32] = field(default_factory=dict)
    cosine: Float32 = field(default_factory=lambda: np.empty((0, 0), np.float32))
    sine: Float32 = field(default_factory=lambda: np.empty((0, 0), np.float32))


def random_weights(shape: Shape) -> Weights:
    rng = np.random.default_rng(shape.seed)
    tables = rng.uniform(-1, 1, (2, shape.positions, shape.head_dim // 2)).astype(np.float32)
    weights = Weights(cosine=tables[0], sine=tables[1])
    for (layer, which), (rows, columns) in matrix_shapes(shape).items():
        kind = Type.Q8_0 if which is Matrix.EMBEDDING else shape.type
        values = rng.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)
        encoded = quantize(values, kind)
        weights.encoded[layer, which] = encoded, kind
        weights.matrices[layer, which] = dequantize(encoded, kind).astype(np.float64)
    for (layer, vector), size in vector_shapes(shape).items():
        low, high = (-0.5, 0.5) if vector.name.endswith("BIAS") else (0.5, 1.5)
        weights.vectors[layer, vector] = rng.uniform(low, high, size).astype(np.float32)
    return weights


def matrix_shapes(shape: Shape) -> dict[tuple[int, Matrix], tuple[int, int]]:
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer = {
        Matrix.QUERY: (query, shape.hidden),
        Matrix.KEY: (key, shape.hidden),
        Matrix.VALUE: (key, shape.hidden),
        Matrix.OUTPUT: (shape.hidden, query),
        Matrix.GATE: (shape.feed_forward, shape.hidden),
        Matrix.UP: (shape.feed_forward, shape.hidden),
        Matrix.DOWN: (shape.hidden, shape.feed_forward),
    }
    shapes = {(i, which): size for i in range(shape.layers) for which, size in layer.items()}
    shapes[0, Matrix.EMBEDDING] = (shape.vocab, shape.hidden)
    if not shape.tied:
        shapes[0, Matrix.HEAD] = (shape.vocab, shape.hidden)
    return shapes


def vector_shapes(shape: Shape) -> dict[tuple[int, Vector], int]:
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer = {Vector.ATTENTION_NORM: shape.hidden, Vector.FEED_FORWARD_NORM: shape.hidden}
    if shape.biases:
        layer |= {Vector.QUERY_BIAS: query, Vector.KEY_BIAS: key, Vector.VALUE_BIAS: key}
        layer[Vector.OUTPUT_BIAS] = shape.hidden
    if shape.qk_norm:
        layer |= {Vector.QUERY_NORM: shape.head_dim, Vector.KEY_NORM: shape.head_dim}
    shapes = {(i, vector): size for i in range(shape.layers) for vector, size in layer.items()}
    shapes[0, Vector.FINAL_NORM] = shape.hidden
    return shapes


def config_of(shape: Shape, *, threads: int = 1, max_rows: int = 256) -> Config:
    return Config(
        shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim,
        shape.feed_forward, shape.vocab, max_rows, shape.positions, threads, shape.kv,
        shape.no_rope_interval, shape.epsilon, shape.head_dim**-0.5,
    )  # fmt: skip


def load(model: NativeModel, weights: Weights, blocks: int) -> None:
    for (layer, which), (encoded, kind) in weights.encoded.items():
        model.put_matrix(layer, which, encoded, GROUP_BYTES[kind])
    for (layer, vector), values in weights.vectors.items():
        model.put_vector(layer, vector, values)
    model.put_rope(weights.cosine, weights.sine)
    model.allocate_kv(blocks)


@contextmanager
def native(
    shape: Shape,
    weights: Weights,
    *,
    threads: int = 1,
    built: Path | None = None,
    blocks: int = 64,
    max_rows: int = 256,
) -> Iterator[NativeModel]:
    model = NativeModel(config_of(shape, threads=threads, max_rows=max_rows), built)
    try:
        load(model, weights, blocks)
        yield model
    finally:
        model.close()


def arrays_of(batch: Batch) -> StepArrays:
    return StepArrays(
        batch.tokens, batch.positions, batch.slots, batch.query_start, batch.context_len,
        batch.block_table, np.array([sample.row for sample in batch.samples], np.int32),
    )  # fmt: skip


def logits_of(
    model: NativeModel, parts: list[tuple[Lane, int]], *, sample_all: bool = True
) -> Float32:
    """Logits of every row of one step, or of each lane's last token."""
    arrays = arrays_of(batch_of(parts, sample_all=sample_all))
    return step_logits(model, arrays)


def step_logits(model: NativeModel, arrays: StepArrays) -> Float32:
    return model.step(arrays, None, logits=True).logits


def logits_in_chunks(model: NativeModel, lane: Lane, chunk: int) -> Float32:
    """Logits of all of a lane's tokens, computed `chunk` at a time."""
    parts = []
    while lane.computed < len(lane.tokens):
        count = min(chunk, len(lane.tokens) - lane.computed)
        parts.append(logits_of(model, [(lane, count)]))
    return np.concatenate(parts)
