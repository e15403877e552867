"""The decoder in numpy, in float64 from the decoded weights; or with the native step's roundings.

The second says how much the roundings alone may cost: int8 activations in groups of 32; and
queries, keys, values and attention weights in bf16, or the first three in int8 a head and the
weights, scaled as the values are, in int16 a tile of 64 positions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernels.cpu.binding import Kv, Matrix, Vector
from tests.kernels.cpu.tiny_native import Float32, Float64, Shape, Weights

_LOG2_E = 1.4426950408889634


def logits(shape: Shape, weights: Weights, tokens: list[int], *, rounded: bool = False) -> Float64:
    """float64[len(tokens), vocab]"""
    narrow = _int8 if rounded else _exact
    x = weights.matrices[0, Matrix.EMBEDDING][tokens]
    for layer in range(shape.layers):
        normed = narrow(_norm(shape, x, weights.vectors[layer, Vector.ATTENTION_NORM]))
        mixed = _attention(shape, weights, layer, normed, rounded)
        x = x + _linear(weights, layer, Matrix.OUTPUT, narrow(mixed), Vector.OUTPUT_BIAS)
        normed = narrow(_norm(shape, x, weights.vectors[layer, Vector.FEED_FORWARD_NORM]))
        gate = _linear(weights, layer, Matrix.GATE, normed)
        up = _linear(weights, layer, Matrix.UP, normed)
        x = x + _linear(weights, layer, Matrix.DOWN, narrow(gate / (1 + np.exp(-gate)) * up))
    head = Matrix.EMBEDDING if shape.tied else Matrix.HEAD
    return _linear(weights, 0, head, narrow(_norm(shape, x, weights.vectors[0, Vector.FINAL_NORM])))


def _attention(
    shape: Shape, weights: Weights, layer: int, normed: Float64, rounded: bool
) -> Float64:
    narrow = _exact if not rounded else _bf16 if shape.kv is Kv.BF16 else _int8_heads
    queries = shape.heads // shape.kv_heads
    query = _heads(shape, weights, layer, normed, Matrix.QUERY) * shape.head_dim**-0.5
    key = _heads(shape, weights, layer, normed, Matrix.KEY).repeat(queries, axis=0)
    value = _heads(shape, weights, layer, normed, Matrix.VALUE).repeat(queries, axis=0)
    scores = narrow(query * _LOG2_E) @ narrow(key).swapaxes(1, 2)  # (heads, T, T)
    count = scores.shape[1]
    scores[:, np.triu(np.ones((count, count), bool), 1)] = -np.inf
    mass = np.exp2(scores - scores.max(axis=2, keepdims=True))
    total = mass.sum(axis=2, keepdims=True)
    if rounded and shape.kv is Kv.INT8:
        mass = _int16_tiles(mass, _head_scales(value))
    elif rounded:
        mass = _bf16(mass)
    mixed: Float64 = mass @ narrow(value) / total
    return mixed.swapaxes(0, 1).reshape(count, -1)


def _heads(shape: Shape, weights: Weights, layer: int, normed: Float64, which: Matrix) -> Float64:
    """(heads, T, head_dim), normalised and rotated as the shape and the matrix ask for."""
    flat = _linear(weights, layer, which, normed, Vector[f"{which.name}_BIAS"])
    heads = flat.reshape(len(flat), -1, shape.head_dim)
    if which is Matrix.VALUE:
        return heads.swapaxes(0, 1)
    norm = weights.vectors.get((layer, Vector[f"{which.name}_NORM"]))
    if norm is not None:
        heads = _norm(shape, heads, norm)
    if not shape.no_rope_interval or (layer + 1) % shape.no_rope_interval:
        heads = _rotated(heads, weights.cosine[: len(heads)], weights.sine[: len(heads)])
    return heads.swapaxes(0, 1)


def _rotated(heads: Float64, cosine: Float32, sine: Float32) -> Float64:
    first, second = np.split(heads, 2, axis=2)
    cos, sin = cosine[:, None, :].astype(np.float64), sine[:, None, :].astype(np.float64)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=2)


def _linear(
    weights: Weights, layer: int, which: Matrix, x: Float64, bias: Vector | None = None
) -> Float64:
    out = x @ weights.matrices[layer, which].T
    added = None if bias is None else weights.vectors.get((layer, bias))
    return out if added is None else out + added


def _norm(shape: Shape, x: Float64, weight: Float32) -> Float64:
    normed: Float64 = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + shape.epsilon) * weight
    return normed


def _exact(x: Float64) -> Float64:
    return x


def _int8(x: Float64) -> Float64:
    groups = x.reshape(len(x), -1, 32)
    scale = np.abs(groups).max(axis=2, keepdims=True) / 127
    rounded: Float64 = (np.rint(groups / np.where(scale == 0, 1, scale)) * scale).reshape(x.shape)
    return rounded


def _int8_heads(x: Float64) -> Float64:
    """(heads, T, head_dim), a scale for each head of each row."""
    scale = _head_scales(x)
    rounded: Float64 = np.rint(x / scale) * scale
    return rounded


def _head_scales(x: Float64) -> Float64:
    scales: Float64 = np.abs(x).max(axis=2, keepdims=True) / 127
    return scales


def _int16_tiles(mass: Float64, value_scale: Float64) -> Float64:
    """mass: (heads, T, positions); value_scale: (heads, positions, 1)"""
    scaled = mass * value_scale.swapaxes(1, 2)
    for start in range(0, scaled.shape[2], 64):
        tile = scaled[:, :, start : start + 64]
        step = np.maximum(tile.max(axis=2, keepdims=True), 1e-30) / 32767
        tile[...] = np.rint(tile / step) * step
    rounded: Float64 = scaled / value_scale.swapaxes(1, 2)
    return rounded


def _bf16(x: Float64) -> Float64:
    bits: NDArray[np.uint32] = x.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)
