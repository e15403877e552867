"""`transformers` models with the weights of a tiny GGUF file: the oracle of the decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from tests.fakes.tiny_gguf import TinyModel, Weights

CLASSES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "smollm3": (SmolLM3Config, SmolLM3ForCausalLM),
}


def oracle(kind: str, model: TinyModel, weights: Weights, scaling: Mapping[str, Any]) -> Any:
    """The model in float64, so that its error is far below ours. kind: a key of `CLASSES`."""
    config_class, model_class = CLASSES[kind]
    biases = {"attention_bias": model.output_bias} if kind in ("llama", "qwen3", "smollm3") else {}
    config = config_class(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden,
        intermediate_size=model.intermediate,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        head_dim=model.head_dim,
        max_position_embeddings=model.context,
        rms_norm_eps=model.epsilon,
        tie_word_embeddings=model.tied,
        rope_parameters={"rope_type": "default", "rope_theta": model.theta, **scaling},
        pad_token_id=None,
        bos_token_id=1,
        eos_token_id=2,
        **biases,
    )
    network = model_class(config)
    tensors = {name: torch.from_numpy(values) for name, values in weights.items()}
    missing, unexpected = network.load_state_dict(tensors, strict=False)
    assert set(missing) <= ({"lm_head.weight"} if model.tied else set())
    assert not unexpected
    return network.double().eval()


def logits(network: Any, tokens: list[int]) -> NDArray[np.float64]:
    """float64[len(tokens), vocabulary]"""
    with torch.inference_mode():
        result = cast("Tensor", network(torch.tensor([tokens]), use_cache=False).logits[0])
    return np.asarray(result.double().numpy())
