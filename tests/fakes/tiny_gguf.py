"""Writes small GGUF models with random weights, in every shape the decoder knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

Weights = dict[str, NDArray[np.float32]]

_GGUF_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.o_proj.bias": "attn_output.bias",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
_PERMUTED = ("llama", "mistral3", "smollm3")


@dataclass(frozen=True)
class TinyModel:
    """What to write. `metadata` adds or replaces keys under the architecture; None removes one.

    types: encodings other than `type`, by the end of a matrix' Hugging Face name
    """

    architecture: str = "llama"
    layers: int = 2
    hidden: int = 64
    intermediate: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    vocab_size: int = 320
    context: int = 512
    theta: float = 10000.0
    epsilon: float = 1e-5
    tied: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    divisors: tuple[float, ...] = ()
    type: GGMLQuantizationType = GGMLQuantizationType.F32
    types: Mapping[str, GGMLQuantizationType] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0


def write_tiny_gguf(path: Path, model: TinyModel) -> Weights:
    """Write the file. Returns its weights, as decoded, by Hugging Face's names and row order."""
    writer = GGUFWriter(path, model.architecture)
    for key, value in _metadata(model).items():
        _add_value(writer, f"{model.architecture}.{key}", value)
    _add_tokenizer(writer, model.vocab_size)
    weights: Weights = {}
    for name, values in _random_weights(model).items():
        kind = _type_of(name, model) if values.ndim == 2 else GGMLQuantizationType.F32
        encoded = quantize(values, kind)
        weights[name] = np.array(dequantize(encoded, kind), np.float32)
        writer.add_tensor(_gguf_name(name), _file_order(name, encoded, model), raw_dtype=kind)
    if model.divisors:
        writer.add_tensor("rope_freqs.weight", np.array(model.divisors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def _type_of(name: str, model: TinyModel) -> GGMLQuantizationType:
    special = (kind for end, kind in model.types.items() if name.endswith(end))
    return next(special, model.type)


def _metadata(model: TinyModel) -> dict[str, Any]:
    values: dict[str, Any] = {
        "block_count": model.layers,
        "context_length": model.context,
        "embedding_length": model.hidden,
        "feed_forward_length": model.intermediate,
        "attention.head_count": model.heads,
        "attention.head_count_kv": model.kv_heads,
        "attention.key_length": model.head_dim,
        "attention.value_length": model.head_dim,
        "attention.layer_norm_rms_epsilon": model.epsilon,
        "rope.freq_base": model.theta,
        "rope.dimension_count": model.head_dim,
    } | dict(model.metadata)
    return {key: value for key, value in values.items() if value is not None}


def _add_value(writer: GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def _add_tokenizer(writer: GGUFWriter, vocab_size: int) -> None:
    """Byte-level BPE of the 256 bytes, one merge, and SmolLM2's three control tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = control + [letters[byte] for byte in range(256)] + ["th"]
    tokens += [f"<unused{index}>" for index in range(vocab_size - len(tokens))]
    normal, controls, unused = 1, 3, 5
    kinds = [controls] * 3 + [normal] * 257
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds + [unused] * (vocab_size - len(kinds)))
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


def _random_weights(model: TinyModel) -> Weights:
    rng = np.random.default_rng(model.seed)
    query, key = model.heads * model.head_dim, model.kv_heads * model.head_dim

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return rng.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)

    def near_one(size: int) -> NDArray[np.float32]:
        return rng.uniform(0.5, 1.5, size).astype(np.float32)

    weights = {"model.embed_tokens.weight": matrix(model.vocab_size, model.hidden)}
    weights["model.norm.weight"] = near_one(model.hidden)
    if not model.tied:
        weights["lm_head.weight"] = matrix(model.vocab_size, model.hidden)
    for layer in range(model.layers):
        parts = {
            "input_layernorm.weight": near_one(model.hidden),
            "self_attn.q_proj.weight": 2 * matrix(query, model.hidden),
            "self_attn.k_proj.weight": 2 * matrix(key, model.hidden),
            "self_attn.v_proj.weight": matrix(key, model.hidden),
            "self_attn.o_proj.weight": matrix(model.hidden, query),
            "post_attention_layernorm.weight": near_one(model.hidden),
            "mlp.gate_proj.weight": matrix(model.intermediate, model.hidden),
            "mlp.up_proj.weight": matrix(model.intermediate, model.hidden),
            "mlp.down_proj.weight": matrix(model.hidden, model.intermediate),
        }
        if model.qkv_bias:
            for part, size in (("q", query), ("k", key), ("v", key)):
                parts[f"self_attn.{part}_proj.bias"] = near_one(size) - 1
        if model.output_bias:
            parts["self_attn.o_proj.bias"] = near_one(model.hidden) - 1
        if model.qk_norm:
            parts["self_attn.q_norm.weight"] = near_one(model.head_dim)
            parts["self_attn.k_norm.weight"] = near_one(model.head_dim)
        weights |= {f"model.layers.{layer}.{name}": values for name, values in parts.items()}
    return weights


def _gguf_name(name: str) -> str:
    outer = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in outer:
        return outer[name]
    layer, part = name.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{_GGUF_NAMES[part]}"


def _file_order(name: str, rows: NDArray[Any], model: TinyModel) -> NDArray[Any]:
    """llama.cpp's converter makes neighbours of the two halves of each rotary pair."""
    heads = {"q": model.heads, "k": model.kv_heads}
    projection = name.rsplit(".", 2)[-2].removesuffix("_proj")
    if model.architecture not in _PERMUTED or projection not in heads:
        return rows
    halves = rows.reshape(heads[projection], 2, -1, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)
