"""What a model needs under each executor, from its options alone."""

from __future__ import annotations

import math

from engine.models.registry import ModelOptions
from engine.runner.base import ModelShape

_FLOAT32_BYTES = 4


def reference_shape(options: ModelOptions) -> ModelShape:
    """Under the reference executor, which keeps everything in float32."""
    values = sum(math.prod(shape) for _, shape in options.tensor_shapes())
    kv_values = 2 * options.layers * options.kv_heads * options.head_dim
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
        weight_bytes=values * _FLOAT32_BYTES,
        kv_bytes_per_token=kv_values * _FLOAT32_BYTES,
        activation_bytes_per_token=_activation_values(options) * _FLOAT32_BYTES,
    )


def _activation_values(options: ModelOptions) -> int:
    """Values alive at once for a row: the widest part of a layer, or the logits."""
    attention = 4 * options.heads * options.head_dim + 2 * options.kv_heads * options.head_dim
    feed_forward = 3 * options.intermediate
    return 3 * options.hidden + max(attention, feed_forward, options.vocab_size)
