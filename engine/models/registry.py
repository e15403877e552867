"""Which models can run, and what a model file says about its own shape.

Everything is checked here, before weights are touched: the architecture, every number, and the
name, shape and encoding of every tensor. What is not understood is refused, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from engine.models.metadata import Metadata
from engine.models.rope import RopeOptions
from engine.protocol.errors import ModelFileError
from engine.weights.gguf import GgufFile, can_decode

MAX_CONTEXT_TOKENS = 1 << 22


@dataclass(frozen=True, slots=True)
class Family:
    """What an architecture fixes for all of its models.

    permuted:         Q and K rows are stored for interleaved rotary pairs, as llama.cpp does
    qkv_bias:         projections of Q, K and V have a bias; None where the file decides
    qk_norm:          Q and K are normalised head by head before the rotation (Qwen3)
    no_rope_interval: every n-th layer has no rotary embedding (SmolLM3); 0 for none
    """

    permuted: bool = False
    qkv_bias: bool | None = None
    qk_norm: bool = False
    no_rope_interval: int = 0


FAMILIES: dict[str, Family] = {
    "llama": Family(permuted=True),  # Llama 1 to 3, Mistral, SmolLM 1 and 2
    "mistral3": Family(permuted=True),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(qk_norm=True),
    "smollm3": Family(permuted=True, no_rope_interval=4),
}

# Present with another value than the one given, these change the computation.
_REFUSED: dict[str, object] = {
    "expert_count": 0,
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.scale": 0.0,
    "attention.temperature_scale": 0.0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "logit_scale": 0.0,
}
_UNUSED_TENSORS = re.compile(r"blk\.\d+\.attn_rot_embd")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Everything that tells one Llama-family model from another.

    hidden, intermediate: widths of the residual stream and of the feed-forward layer
    context_length:       tokens; no longer than the sliding window, where there is one, because
                          up to there windowed and full attention are the same
    tied:                 the output layer is the embedding
    qkv_bias, output_bias, qk_norm, permuted, no_rope_interval: as in `Family`
    """

    name: str
    architecture: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_epsilon: float
    rope: RopeOptions
    tied: bool
    qkv_bias: bool
    output_bias: bool
    qk_norm: bool
    permuted: bool
    no_rope_interval: int

    @classmethod
    def from_gguf(cls, file: GgufFile) -> ModelOptions:
        """Raises `ModelFileError` for whatever this decoder cannot compute exactly."""
        metadata = Metadata(file)
        family = _family(file, metadata)
        options = _read(file, metadata, family)
        _check_tensors(file, options)
        return options

    def has_rope(self, layer: int) -> bool:
        return not self.no_rope_interval or (layer + 1) % self.no_rope_interval != 0

    def tensor_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and row-major shapes of all tensors the decoder reads, layer by layer."""
        yield "token_embd.weight", (self.vocab_size, self.hidden)
        yield "output_norm.weight", (self.hidden,)
        if not self.tied:
            yield "output.weight", (self.vocab_size, self.hidden)
        if self.rope.has_divisors:
            yield "rope_freqs.weight", (self.head_dim // 2,)
        layer_shapes = self.layer_shapes()
        for layer in range(self.layers):
            for part, shape in layer_shapes.items():
                yield f"blk.{layer}.{part}", shape

    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        """The same for one layer, without its prefix."""
        hidden, intermediate = self.hidden, self.intermediate
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (hidden,),
            "attn_q.weight": (query, hidden),
            "attn_k.weight": (key, hidden),
            "attn_v.weight": (key, hidden),
            "attn_output.weight": (hidden, query),
            "ffn_norm.weight": (hidden,),
            "ffn_gate.weight": (intermediate, hidden),
            "ffn_up.weight": (intermediate, hidden),
            "ffn_down.weight": (hidden, intermediate),
        }
        if self.qkv_bias:
            shapes |= {"attn_q.bias": (query,), "attn_k.bias": (key,), "attn_v.bias": (key,)}
        if self.output_bias:
            shapes["attn_output.bias"] = (hidden,)
        if self.qk_norm:
            shapes |= {
                "attn_q_norm.weight": (self.head_dim,),
                "attn_k_norm.weight": (self.head_dim,),
            }
        return shapes


def _family(file: GgufFile, metadata: Metadata) -> Family:
    architecture = metadata.architecture
    if architecture not in FAMILIES:
        raise ModelFileError(
            f"{file.path}: the architecture {architecture!r} is not supported. "
            f"Supported are {', '.join(sorted(FAMILIES))}."
        )
    for key, neutral in _REFUSED.items():
        value = metadata.get(key, neutral)
        if value != neutral:
            raise ModelFileError(
                f"{file.path}: {architecture}.{key} is {value!r}, which is not supported."
            )
    parts = file.metadata.get("split.count", 1)
    if parts not in (0, 1):
        raise ModelFileError(
            f"{file.path} is one of {parts} parts. "
            "Merge them into one file with gguf-split --merge."
        )
    return FAMILIES[architecture]


def _read(file: GgufFile, metadata: Metadata, family: Family) -> ModelOptions:
    hidden = metadata.count("embedding_length")
    heads = metadata.count("attention.head_count")
    kv_heads = metadata.count("attention.head_count_kv", heads)
    head_dim = metadata.count("attention.key_length", hidden // heads)
    context = metadata.count("context_length", most=MAX_CONTEXT_TOKENS)
    options = ModelOptions(
        name=str(file.metadata.get("general.name", file.path.stem)),
        architecture=metadata.architecture,
        layers=metadata.count("block_count"),
        hidden=hidden,
        intermediate=metadata.count("feed_forward_length"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=file.info("token_embd.weight").shape[0],
        context_length=min(context, metadata.count("attention.sliding_window", context)),
        norm_epsilon=metadata.positive("attention.layer_norm_rms_epsilon"),
        rope=RopeOptions.from_metadata(metadata, context, "rope_freqs.weight" in file.tensors),
        tied="output.weight" not in file.tensors,
        qkv_bias=(
            "blk.0.attn_q.bias" in file.tensors if family.qkv_bias is None else family.qkv_bias
        ),
        output_bias="blk.0.attn_output.bias" in file.tensors,
        qk_norm=family.qk_norm,
        permuted=family.permuted,
        no_rope_interval=family.no_rope_interval,
    )
    _check_heads(file, metadata, options)
    return options


def _check_heads(file: GgufFile, metadata: Metadata, options: ModelOptions) -> None:
    if options.heads % options.kv_heads:
        raise ModelFileError(
            f"{file.path}: {options.heads} attention heads cannot share {options.kv_heads} "
            "key-value heads evenly."
        )
    if options.head_dim == 0 or options.head_dim % 2:
        raise ModelFileError(
            f"{file.path}: a head of {options.head_dim} values cannot be rotated in pairs."
        )
    for key in ("attention.value_length", "rope.dimension_count"):
        value = metadata.count(key, options.head_dim)
        if value != options.head_dim:
            raise ModelFileError(
                f"{file.path}: {options.architecture}.{key} is {value}, which is only supported "
                f"where it equals the head's {options.head_dim} values."
            )


def _check_tensors(file: GgufFile, options: ModelOptions) -> None:
    """Every tensor that is needed is there, as expected; nothing else is."""
    known = set()
    for name, shape in options.tensor_shapes():
        info = file.info(name)
        known.add(name)
        if info.shape != shape:
            raise ModelFileError(
                f"{file.path}: the tensor {name!r} has the shape {info.shape}, but the file's "
                f"metadata call for {shape}."
            )
        if not can_decode(info.type):
            raise ModelFileError(
                f"{file.path}: the tensor {name!r} has the type {info.type.name}, which is not "
                "supported. Use a file in Q8_0, Q4_K or F16, for example."
            )
    for name in file.tensors:
        if name not in known and not _UNUSED_TENSORS.match(name):
            raise ModelFileError(
                f"{file.path}: the tensor {name!r} is not part of a {options.architecture} model "
                "as it is understood here, so its answers could not be trusted."
            )
