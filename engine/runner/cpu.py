"""The `cpu` executor: a whole step in one native call, on packed 4- and 8-bit weights.

Activations are int8 in groups of 32 and the KV cache is bf16 or int8, so logits differ from
the `reference` executor's by rounding; which tokens follow from given logits does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType as Type
from numpy.typing import NDArray

from engine.models.registry import ModelOptions
from engine.models.rope import rope_tables
from engine.protocol.errors import ModelFileError
from engine.protocol.sampling import Sampling
from engine.protocol.settings import EngineSettings
from engine.runner.base import Batch, Executor, Float32, Int32, Sampled, SampleRow
from engine.runner.cores import usable_cores
from engine.runner.shape import cpu_shape
from engine.weights.gguf import GgufFile
from engine.weights.pack import GROUP_BYTES, packed
from kernels.cpu.binding import (
    Config,
    Kv,
    Matrix,
    NativeError,
    NativeModel,
    SampleParameters,
    StepArrays,
    Vector,
)

_MATRICES = {
    "attn_q": Matrix.QUERY, "attn_k": Matrix.KEY, "attn_v": Matrix.VALUE,
    "attn_output": Matrix.OUTPUT, "ffn_down": Matrix.DOWN,
}  # fmt: skip
_VECTORS = {
    "attn_norm.weight": Vector.ATTENTION_NORM, "ffn_norm.weight": Vector.FEED_FORWARD_NORM,
    "attn_q.bias": Vector.QUERY_BIAS, "attn_k.bias": Vector.KEY_BIAS,
    "attn_v.bias": Vector.VALUE_BIAS, "attn_output.bias": Vector.OUTPUT_BIAS,
    "attn_q_norm.weight": Vector.QUERY_NORM, "attn_k_norm.weight": Vector.KEY_NORM,
}  # fmt: skip
_KV = {"bfloat16": Kv.BF16, "int8": Kv.INT8}
_PERMUTED = ("attn_q", "attn_k")


class CpuExecutor(Executor):
    """Takes the weights of `file`; needs it no longer afterwards."""

    name = "cpu"

    def __init__(self, file: GgufFile, options: ModelOptions, settings: EngineSettings) -> None:
        """Raises `ModelFileError` for a model whose shape the native step cannot take."""
        self.shape = cpu_shape(file, options, settings.kv_cache_dtype)
        positions = min(settings.max_model_len, options.context_length)
        config = Config(
            options.layers, options.hidden, options.heads, options.kv_heads, options.head_dim,
            options.intermediate, options.vocab_size,
            max(settings.max_num_batched_tokens, settings.max_num_seqs), positions,
            settings.threads or usable_cores(), _KV[settings.kv_cache_dtype],
            options.no_rope_interval, options.norm_epsilon, options.head_dim**-0.5,
        )  # fmt: skip
        try:
            self._model = NativeModel(config)
        except NativeError as error:
            raise ModelFileError(
                f"{file.path}: the cpu executor cannot hold this model: {error}. "
                "Use --executor reference."
            ) from error
        try:
            _load(self._model, file, options, positions)
        except BaseException:
            self._model.close()
            raise

    def allocate(self, num_blocks: int) -> None:
        self._model.allocate_kv(num_blocks)

    def run(self, batch: Batch) -> list[Sampled]:
        """Raises `NativeError`, a ValueError, for a batch that contradicts itself."""
        result = self._model.step(_arrays(batch), list(map(sample_parameters, batch.samples)))
        tokens: list[int] = result.tokens.tolist()
        return [
            Sampled(token)
            if token < 0 or row.sampling.logprobs is None
            else Sampled(
                token,
                float(result.logprobs[i]),
                result.top_ids[i, : result.alternatives[i]],
                result.top_logprobs[i, : result.alternatives[i]],
            )
            for i, (token, row) in enumerate(zip(tokens, batch.samples, strict=True))
        ]

    def logits(self, batch: Batch) -> Float32:
        """float32[len(batch.samples), vocabulary]: the step without its last part, the sampling."""
        return self._model.step(_arrays(batch), None, logits=True).logits

    def close(self) -> None:
        self._model.close()


def _arrays(batch: Batch) -> StepArrays:
    return StepArrays(
        batch.tokens, batch.positions, batch.slots, batch.query_start, batch.context_len,
        batch.block_table, np.array([sample.row for sample in batch.samples], np.int32),
    )  # fmt: skip


def sample_parameters(row: SampleRow) -> SampleParameters:
    """A row's parameters in the native step's terms."""
    s = row.sampling
    plain = SampleParameters(
        row.seed, row.position, 0.0 if s.greedy else s.temperature, max(s.top_k, 0), s.top_p,
        s.min_p, logprobs=-1 if s.logprobs is None else s.logprobs,
    )  # fmt: skip
    ending = bool(row.end_ids) and len(row.output) < s.min_tokens
    if not ending and _neutral(s):
        return plain if row.mask is None else plain._replace(mask=row.mask)
    return plain._replace(
        mask=row.mask,
        repetition_penalty=s.repetition_penalty,
        presence_penalty=s.presence_penalty,
        frequency_penalty=s.frequency_penalty,
        prompt=np.ascontiguousarray(row.prompt, np.int32),
        output=np.ascontiguousarray(row.output, np.int32),
        allowed=None if s.allowed_token_ids is None else _array(s.allowed_token_ids),
        bad=_array(s.bad_token_ids) if s.bad_token_ids else None,
        ending=_array(sorted(row.end_ids)) if ending else None,
        bias=_array(list(s.logit_bias)) if s.logit_bias else None,
        bias_values=np.array(list(s.logit_bias.values()), np.float32) if s.logit_bias else None,
    )


def _neutral(s: Sampling) -> bool:
    """Whether the logits become a distribution as they are."""
    return (
        s.repetition_penalty == 1.0
        and not (s.presence_penalty or s.frequency_penalty or s.logit_bias or s.bad_token_ids)
        and s.allowed_token_ids is None
    )


def _array(ids: list[int]) -> Int32:
    return np.array(ids, np.int32)


def _load(model: NativeModel, file: GgufFile, options: ModelOptions, positions: int) -> None:
    for layer in range(options.layers):
        prefix = f"blk.{layer}."
        for name, which in _MATRICES.items():
            raw, kind = packed(file, f"{prefix}{name}.weight")
            if options.permuted and name in _PERMUTED:
                raw = _halves_apart(raw, options.head_dim)
            model.put_matrix(layer, which, raw, GROUP_BYTES[kind])
        _load_gate_and_up(model, file, layer)
        for name, vector in _VECTORS.items():
            if prefix + name in file.tensors:
                values = file.dequantized(prefix + name)
                if options.permuted and name in ("attn_q.bias", "attn_k.bias"):
                    values = _halves_apart(values, options.head_dim)
                model.put_vector(layer, vector, values)
    raw, kind = packed(file, "token_embd.weight")
    model.put_matrix(0, Matrix.EMBEDDING, raw, GROUP_BYTES[kind])
    if not options.tied:
        raw, kind = packed(file, "output.weight")
        model.put_matrix(0, Matrix.HEAD, raw, GROUP_BYTES[kind])
    model.put_vector(0, Vector.FINAL_NORM, file.dequantized("output_norm.weight"))
    divisors = file.dequantized("rope_freqs.weight") if options.rope.has_divisors else None
    model.put_rope(*rope_tables(options.rope, options.head_dim, positions, divisors))


def _load_gate_and_up(model: NativeModel, file: GgufFile, layer: int) -> None:
    """The two share a block of packed rows, so where their formats differ both take Q8_0."""
    names = (f"blk.{layer}.ffn_gate.weight", f"blk.{layer}.ffn_up.weight")
    matrices = [packed(file, name) for name in names]
    if matrices[0][1] != matrices[1][1]:
        matrices = [packed(file, name, Type.Q8_0) for name in names]
    for which, (raw, kind) in zip((Matrix.GATE, Matrix.UP), matrices, strict=True):
        model.put_matrix(layer, which, raw, GROUP_BYTES[kind])


def _halves_apart(rows: NDArray[Any], head_dim: int) -> NDArray[Any]:
    """llama.cpp stores rotary pairs side by side; the step rotates value i with i + D/2."""
    pairs = rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
