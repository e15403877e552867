"""The Llama-family decoder on a flat batch, from the operations in `kernels`.

    hidden = embedding[token]
    layer:   hidden += output(attention(rope(norm?(query(n))), KV cache))   n = rms_norm(hidden)
             hidden += down(silu(gate(n)) * up(n))                          n = rms_norm(hidden)
    logits = output(rms_norm(hidden))

LLaMA (Touvron et al. 2023) with grouped-query attention (Ainslie et al. 2023) and the options of
`ModelOptions`. Row t of a result depends on row t and on its sequence's cache, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.models.parameters import LayerParameters, Parameters
from engine.models.registry import ModelOptions
from kernels.kv_store import kv_store
from kernels.linear import linear
from kernels.paged_attention import AttentionPlan, paged_attention
from kernels.rms_norm import rms_norm
from kernels.rope import rope
from kernels.silu_mul import silu_mul


@dataclass(frozen=True, slots=True)
class LayerCache:
    """K and V of one layer, each [kv_heads, blocks, block_tokens, head_dim]."""

    key: Tensor
    value: Tensor


@dataclass(frozen=True, slots=True)
class Queries:
    """The rows that attend, N of them.

    rows: int64[N] among the T rows of the step; None for all of them
    plan: their segments. It may cover fewer rows; the rest are padding
    """

    rows: Tensor | None
    cos: Tensor  # (N, head_dim / 2)
    sin: Tensor  # (N, head_dim / 2)
    plan: AttentionPlan


@dataclass(frozen=True, slots=True)
class DecoderStep:
    """One step of T rows, padding included.

    tokens:  int64[T]
    slots:   int64[R], R <= T, where K and V of the first R rows go; the rest is padding
    all:     the queries of every layer but the last
    sampled: those whose logits are wanted; nothing else goes through the rest of the last layer
    """

    tokens: Tensor
    slots: Tensor
    all: Queries
    sampled: Queries


class Decoder:
    def __init__(self, options: ModelOptions, parameters: Parameters) -> None:
        self.options = options
        self.parameters = parameters
        self._scale = options.head_dim**-0.5

    def forward(self, step: DecoderStep, caches: list[LayerCache]) -> Tensor:
        """float32[N, vocabulary], logits of the N sampled rows. Writes K and V of the step."""
        hidden = self.parameters.embedding[step.tokens]
        last = len(caches) - 1
        for index, (layer, cache) in enumerate(zip(self.parameters.layers, caches, strict=True)):
            normed = self._norm(hidden, layer.attention_norm)
            self._store(index, layer, cache, normed, step)
            queries = step.sampled if index == last else step.all
            if len(queries.cos) == 0:
                break
            if queries.rows is not None:
                hidden, normed = hidden[queries.rows], normed[queries.rows]
            hidden = hidden + self._attention(index, layer, cache, normed, queries)
            hidden = hidden + self._feed_forward(layer, hidden)
        else:
            return linear(self._norm(hidden, self.parameters.output_norm), self.parameters.output)
        return hidden.new_empty(0, self.options.vocab_size)

    def _store(
        self,
        index: int,
        layer: LayerParameters,
        cache: LayerCache,
        normed: Tensor,
        step: DecoderStep,
    ) -> None:
        key = self._heads(linear(normed, layer.key, layer.key_bias), layer.key_norm)
        value = self._heads(linear(normed, layer.value, layer.value_bias), None)
        if self.options.has_rope(index):
            key = rope(key, step.all.cos, step.all.sin)
        real = len(step.slots)
        kv_store(key[:real], value[:real], cache.key, cache.value, step.slots)

    def _attention(
        self,
        index: int,
        layer: LayerParameters,
        cache: LayerCache,
        normed: Tensor,
        queries: Queries,
    ) -> Tensor:
        query = self._heads(linear(normed, layer.query, layer.query_bias), layer.query_norm)
        if self.options.has_rope(index):
            query = rope(query, queries.cos, queries.sin)
        mixed = paged_attention(query, cache.key, cache.value, queries.plan, scale=self._scale)
        return linear(mixed.flatten(1), layer.output, layer.output_bias)

    def _feed_forward(self, layer: LayerParameters, hidden: Tensor) -> Tensor:
        normed = self._norm(hidden, layer.feed_forward_norm)
        return linear(silu_mul(linear(normed, layer.gate), linear(normed, layer.up)), layer.down)

    def _heads(self, flat: Tensor, norm: Tensor | None) -> Tensor:
        """[T, heads * D] -> [T, heads, D], each head normalised where the model does so."""
        heads = flat.view(len(flat), -1, self.options.head_dim)
        return heads if norm is None else self._norm(heads, norm)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self.options.norm_epsilon)
