"""The bundled model in the other formats that a comparison needs, from its own dequantised weights.

convert.py SOURCE.gguf q8_0|bf16 OUT.gguf       the same weights in another GGUF encoding
convert.py SOURCE.gguf hf OUT_FOLDER            a Hugging Face checkpoint in bfloat16
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as Type
from gguf.quants import quantize

from engine.models.registry import ModelOptions
from engine.weights.gguf import GgufFile


def to_gguf(source: GgufFile, kind: Type, target: Path) -> None:
    writer = gguf.GGUFWriter(target, source.metadata["general.architecture"])
    for key, value in source.metadata.items():
        if key not in ("general.architecture", "general.file_type"):
            _write_value(writer, key, value)
    for name, info in source.tensors.items():
        values = source.dequantized(name)
        if len(info.shape) == 1:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_value(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


_NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip


_BYTE_LEVEL = {
    "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True
}  # fmt: skip


def to_hugging_face(source: GgufFile, target: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    options = ModelOptions.from_gguf(source)
    config = LlamaConfig(
        vocab_size=options.vocab_size, hidden_size=options.hidden,
        intermediate_size=options.intermediate, num_hidden_layers=options.layers,
        num_attention_heads=options.heads, num_key_value_heads=options.kv_heads,
        max_position_embeddings=options.context_length, rms_norm_eps=options.norm_epsilon,
        rope_theta=options.rope.theta, tie_word_embeddings=options.tied,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    state = {
        "model.embed_tokens.weight": source.dequantized("token_embd.weight"),
        "model.norm.weight": source.dequantized("output_norm.weight"),
    }
    for layer in range(options.layers):
        for ours, theirs in _NAMES.items():
            values = source.dequantized(f"blk.{layer}.{ours}.weight")
            if ours in ("attn_q", "attn_k"):  # llama.cpp keeps rotary pairs side by side
                pairs = values.reshape(-1, options.head_dim // 2, 2, values.shape[-1])
                values = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
            state[f"model.layers.{layer}.{theirs}.weight"] = values
    model = LlamaForCausalLM(config)
    tensors = {name: torch.from_numpy(values) for name, values in state.items()}
    model.load_state_dict(tensors, strict=False)
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(target)
    tokens = source.metadata["tokenizer.ggml.tokens"]
    bpe = {
        "version": "1.0", "added_tokens": [], "normalizer": None,
        "pre_tokenizer": _BYTE_LEVEL, "decoder": _BYTE_LEVEL, "post_processor": None,
        "truncation": None, "padding": None,
        "model": {"type": "BPE", "vocab": {text: id for id, text in enumerate(tokens)},
                  "merges": source.metadata["tokenizer.ggml.merges"]},
    }  # fmt: skip
    (target / "tokenizer.json").write_text(json.dumps(bpe))
    (target / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tokens[2]})
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("kind", choices=["q8_0", "bf16", "hf"])
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    source = GgufFile.open(arguments.source)
    if arguments.kind == "hf":
        to_hugging_face(source, arguments.target)
    else:
        to_gguf(source, Type[arguments.kind.upper()], arguments.target)


if __name__ == "__main__":
    main()
