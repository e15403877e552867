"""A model's weights as float32 tensors, laid out as the decoder wants them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.registry import ModelOptions
from engine.models.rope import rope_tables
from engine.weights.gguf import GgufFile


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """One layer. In the shapes Q = heads * head_dim, KV = kv_heads * head_dim, I = intermediate.

    Rows of Q and K are in the order of half rotation: element i turns with element i + D/2.
    """

    attention_norm: Tensor  # (hidden,)
    query: Tensor  # (Q, hidden)
    key: Tensor  # (KV, hidden)
    value: Tensor  # (KV, hidden)
    output: Tensor  # (hidden, Q)
    feed_forward_norm: Tensor  # (hidden,)
    gate: Tensor  # (I, hidden)
    up: Tensor  # (I, hidden)
    down: Tensor  # (hidden, I)
    query_bias: Tensor | None  # (Q,)
    key_bias: Tensor | None  # (KV,)
    value_bias: Tensor | None  # (KV,)
    output_bias: Tensor | None  # (hidden,)
    query_norm: Tensor | None  # (head_dim,)
    key_norm: Tensor | None  # (head_dim,)


@dataclass(frozen=True, slots=True)
class Parameters:
    embedding: Tensor  # (vocabulary, hidden)
    layers: tuple[LayerParameters, ...]
    output_norm: Tensor  # (hidden,)
    output: Tensor  # (vocabulary, hidden); the embedding itself where they are tied
    cos: Tensor  # (context, head_dim / 2)
    sin: Tensor  # (context, head_dim / 2)


def load_parameters(file: GgufFile, options: ModelOptions, threads: int) -> Parameters:
    """Dequantise everything, `threads` tensors at a time. Raises `ModelFileError`."""
    tensors = dict(_dequantize(file, options, threads))
    embedding = tensors["token_embd.weight"]
    divisors = tensors.get("rope_freqs.weight")
    cos, sin = rope_tables(
        options.rope,
        options.head_dim,
        options.context_length,
        None if divisors is None else divisors.numpy(),
    )
    return Parameters(
        embedding=embedding,
        layers=tuple(_layer(tensors, options, index) for index in range(options.layers)),
        output_norm=tensors["output_norm.weight"],
        output=tensors.get("output.weight", embedding),
        cos=torch.from_numpy(cos),
        sin=torch.from_numpy(sin),
    )


def _dequantize(
    file: GgufFile, options: ModelOptions, threads: int
) -> Iterator[tuple[str, Tensor]]:
    names = [name for name, _ in options.tensor_shapes()]
    with ThreadPoolExecutor(threads, thread_name_prefix="dequantize") as pool:
        for name, values in zip(names, pool.map(file.dequantized, names), strict=True):
            yield name, torch.from_numpy(values)


def _layer(tensors: Mapping[str, Tensor], options: ModelOptions, index: int) -> LayerParameters:
    def take(part: str) -> Tensor:
        return tensors[f"blk.{index}.{part}"]

    def take_if_any(part: str) -> Tensor | None:
        return tensors.get(f"blk.{index}.{part}")

    def halves(rows: Tensor | None, heads: int) -> Tensor | None:
        return _to_halves(rows, heads) if rows is not None and options.permuted else rows

    query, key = take("attn_q.weight"), take("attn_k.weight")
    if options.permuted:
        query, key = _to_halves(query, options.heads), _to_halves(key, options.kv_heads)
    return LayerParameters(
        attention_norm=take("attn_norm.weight"),
        query=query,
        key=key,
        value=take("attn_v.weight"),
        output=take("attn_output.weight"),
        feed_forward_norm=take("ffn_norm.weight"),
        gate=take("ffn_gate.weight"),
        up=take("ffn_up.weight"),
        down=take("ffn_down.weight"),
        query_bias=halves(take_if_any("attn_q.bias"), options.heads),
        key_bias=halves(take_if_any("attn_k.bias"), options.kv_heads),
        value_bias=take_if_any("attn_v.bias"),
        output_bias=take_if_any("attn_output.bias"),
        query_norm=take_if_any("attn_q_norm.weight"),
        key_norm=take_if_any("attn_k_norm.weight"),
    )


def _to_halves(rows: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's order, in which the two elements of a rotary pair are neighbours."""
    pairs = rows.view(heads, -1, 2, *rows.shape[1:])  # (heads, D/2, 2, …)
    return pairs.transpose(1, 2).reshape(rows.shape)
