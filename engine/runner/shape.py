"""What a model needs under each executor, from its options and the file's header alone."""

from __future__ import annotations

import math

from gguf.constants import GGML_QUANT_SIZES

from engine.models.registry import ModelOptions
from engine.protocol.settings import KvCacheDtype
from engine.runner.base import ModelShape
from engine.weights.gguf import GgufFile
from engine.weights.pack import GROUP, packed_type
from kernels.cpu.binding import HEAD_DIMS, MAX_QUERIES

_FLOAT32_BYTES = 4
_KV_VALUE_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


def reference_shape(options: ModelOptions) -> ModelShape:
    """Under the reference executor, which keeps everything in float32."""
    weight_bytes = _num_weights(options) * _FLOAT32_BYTES
    return _shape(options, weight_bytes, "float32", _widest(options), "float32")


def cpu_shape(
    file: GgufFile, options: ModelOptions, kv_dtype: KvCacheDtype = "bfloat16"
) -> ModelShape:
    """Under the cpu executor: packed 4- and 8-bit weights, logits of sampled rows only."""
    weight_bytes = 0
    for name, shape in options.tensor_shapes():
        if len(shape) == 1:
            weight_bytes += math.prod(shape) * _FLOAT32_BYTES
        else:
            size, size_bytes = GGML_QUANT_SIZES[packed_type(file.info(name).type)]
            weight_bytes += math.prod(shape) // size * size_bytes
    attention = 4 * options.heads * options.head_dim + 2 * options.kv_heads * options.head_dim
    values = 3 * options.hidden + attention + options.intermediate
    return _shape(options, weight_bytes, kv_dtype, values, f"4 and 8 bit, {kv_dtype} KV")


def kv_bytes_per_token(layers: int, kv_heads: int, head_dim: int, dtype: str) -> int:
    """Bytes of K and V; int8 has a float32 scale beside each head's key and each head's value."""
    scale_bytes = _FLOAT32_BYTES if dtype == "int8" else 0
    return 2 * layers * kv_heads * (head_dim * _KV_VALUE_BYTES[dtype] + scale_bytes)


def cpu_refusal(file: GgufFile, options: ModelOptions) -> str | None:
    """Why the native step cannot hold this model, as a sentence; None where it can."""
    if options.head_dim not in HEAD_DIMS:
        return (
            f"{file.path}: the cpu executor takes heads of {', '.join(map(str, HEAD_DIMS))} "
            f"values, not {options.head_dim}."
        )
    if (queries := options.heads // options.kv_heads) > MAX_QUERIES:
        return (
            f"{file.path}: the cpu executor takes up to {MAX_QUERIES} heads that share a KV head, "
            f"not {queries}."
        )
    widths = {
        "hidden": options.hidden,
        "feed-forward": options.intermediate,
        "query": options.heads * options.head_dim,
    }
    for what, width in widths.items():
        if width % GROUP:
            return (
                f"{file.path}: the cpu executor needs a {what} width that is a multiple of "
                f"{GROUP}, not {width}."
            )
    return None


def _shape(
    options: ModelOptions,
    weight_bytes: int,
    kv_dtype: str,
    activation_values: int,
    precision: str,
) -> ModelShape:
    return ModelShape(
        name=options.name,
        architecture=options.architecture,
        layers=options.layers,
        hidden=options.hidden,
        heads=options.heads,
        kv_heads=options.kv_heads,
        head_dim=options.head_dim,
        vocab_size=options.vocab_size,
        context_length=options.context_length,
        num_weights=_num_weights(options),
        weight_bytes=weight_bytes,
        kv_bytes_per_token=kv_bytes_per_token(
            options.layers, options.kv_heads, options.head_dim, kv_dtype
        ),
        kv_dtype=kv_dtype,
        activation_bytes_per_token=activation_values * _FLOAT32_BYTES,
        precision=precision,
    )


def _num_weights(options: ModelOptions) -> int:
    return sum(math.prod(shape) for _, shape in options.tensor_shapes())


def _widest(options: ModelOptions) -> int:
    """Values alive at once for a row: the widest part of a layer, or the logits."""
    attention = 4 * options.heads * options.head_dim + 2 * options.kv_heads * options.head_dim
    feed_forward = 3 * options.intermediate
    return 3 * options.hidden + max(attention, feed_forward, options.vocab_size)
