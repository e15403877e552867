"""What fits: weights, KV and activations against a machine's memory, and what a length costs.

Arithmetic only. Times are a roofline (Williams et al., "Roofline: An Insightful Visual
Performance Model", 2009): a step takes at least as long as its arithmetic at the machine's peak
and its memory traffic at full bandwidth, whichever is more. Real steps take longer, so these
times are lower bounds, and are called estimates wherever they are shown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.protocol.settings import EngineSettings
from engine.runner.base import BLOCK_TOKENS, ModelShape
from engine.runner.shape import kv_bytes_per_token

MIB = 1024 * 1024
GPU_MEMORY_SHARE = 0.9
"""Of a GPU's memory; the rest is the driver's, the context's and the allocator's."""

_FLOAT32_BYTES, _BFLOAT16_BYTES = 4, 2


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a model would run.

    memory_bytes:        what the model, the KV pool and activations may use together
    bandwidth_bytes_s:   of that memory; None where unknown
    peak_flops:          multiply-adds count as two, at the precision used; None where unknown
    """

    name: str
    memory_bytes: int
    bandwidth_bytes_s: float | None = None
    peak_flops: float | None = None


def _gpu(name: str, memory_gb: int, bandwidth_gb_s: int, bf16_tflops: int) -> Machine:
    return Machine(name, memory_gb * 10**9, bandwidth_gb_s * 1e9, bf16_tflops * 1e12)


GPUS = {
    gpu.name: gpu
    for gpu in (
        # From the makers' data sheets; bf16 (T4: fp16) without sparsity.
        _gpu("H200", 141, 4800, 989),
        _gpu("H100", 80, 3350, 989),
        _gpu("A100-80", 80, 2039, 312),
        _gpu("A100-40", 40, 1555, 312),
        _gpu("L40S", 48, 864, 362),
        _gpu("A10", 24, 600, 125),
        _gpu("L4", 24, 300, 121),
        _gpu("RTX4090", 24, 1008, 165),
        _gpu("RTX3090", 24, 936, 71),
        _gpu("T4", 16, 320, 65),
    )
}


@dataclass(frozen=True, slots=True)
class Fit:
    """One model on one machine under given settings.

    pool_bytes: memory of the KV pool; negative when not even weights and activations fit
    """

    shape: ModelShape
    machine: Machine
    settings: EngineSettings
    pool_bytes: int

    @property
    def context_tokens(self) -> int:
        """Tokens a request may span: the setting, or the model's window where that is less."""
        return min(self.settings.max_model_len, self.shape.context_length)

    @property
    def activation_bytes(self) -> int:
        """Peak temporaries of the largest step."""
        return self.shape.activation_bytes_per_token * self.settings.max_num_batched_tokens

    @property
    def total_bytes(self) -> int:
        return self.shape.weight_bytes + max(0, self.pool_bytes) + self.activation_bytes

    @property
    def fits(self) -> bool:
        """Everything is within the memory, and one request of the full context within the pool."""
        return self.total_bytes <= self.machine.memory_bytes and self.room(self.context_tokens) > 0

    @property
    def pool_tokens(self) -> int:
        """Whole blocks only."""
        blocks = max(0, self.pool_bytes) // (self.shape.kv_bytes_per_token * BLOCK_TOKENS)
        return blocks * BLOCK_TOKENS

    def kv_bytes(self, tokens: int) -> int:
        """KV of a request of that length, in whole blocks."""
        return _in_blocks(tokens) * self.shape.kv_bytes_per_token

    def room(self, tokens: int) -> int:
        """Requests of that length that the pool holds together: none has to be preempted."""
        return self.pool_tokens // _in_blocks(tokens)

    def at_once(self, tokens: int) -> int:
        """Requests of that length that run together: as many as `max_num_seqs` lets in."""
        return min(self.settings.max_num_seqs, self.room(tokens))

    def first_token_s(self, prompt_tokens: int) -> float | None:
        """Least time to the first token of a lone prompt that is in no cache; None if unknown.

        The prompt goes through in chunks of `max_num_batched_tokens`.
        """
        if self.machine.peak_flops is None or self.machine.bandwidth_bytes_s is None:
            return None
        chunk = self.settings.max_num_batched_tokens
        return sum(
            max(
                self._flops(start, min(start + chunk, prompt_tokens)) / self.machine.peak_flops,
                self._traffic_bytes(min(start + chunk, prompt_tokens))
                / self.machine.bandwidth_bytes_s,
            )
            for start in range(0, prompt_tokens, chunk)
        )

    def _flops(self, start: int, end: int) -> float:
        """Of the chunk of positions start to end: its matrix products and its attention."""
        shape = self.shape
        rows = end - start
        # The embedding is looked up, and the output layer is computed for one row only.
        table = shape.vocab_size * shape.hidden
        attended = rows * start + rows * (rows + 1) / 2
        attention = 4 * shape.layers * shape.heads * shape.head_dim * attended
        return 2.0 * max(0, shape.num_weights - table) * rows + 2.0 * table + attention

    def _traffic_bytes(self, context_tokens: int) -> int:
        """Of one chunk: every weight once, and the KV of all positions so far."""
        return self.shape.weight_bytes + context_tokens * self.shape.kv_bytes_per_token


def fit_machine(shape: ModelShape, settings: EngineSettings, machine: Machine) -> Fit:
    """Under the executor of `shape`, whose pool is `kv_cache_mb`, as `fewer serve` takes it."""
    return Fit(shape, machine, settings, settings.kv_cache_mb * MIB)


def fit_gpu(shape: ModelShape, settings: EngineSettings, gpu: Machine) -> Fit:
    """In bfloat16, KV in `kv_cache_dtype`, with all the memory that is left over as pool.

    shape: of the reference executor, which keeps float32
    """
    half = replace(
        shape,
        weight_bytes=shape.weight_bytes * _BFLOAT16_BYTES // _FLOAT32_BYTES,
        kv_bytes_per_token=kv_bytes_per_token(
            shape.layers, shape.kv_heads, shape.head_dim, settings.kv_cache_dtype
        ),
        kv_dtype=settings.kv_cache_dtype,
        activation_bytes_per_token=(
            shape.activation_bytes_per_token * _BFLOAT16_BYTES // _FLOAT32_BYTES
        ),
        precision=f"bfloat16, {settings.kv_cache_dtype} KV",
    )
    usable = replace(gpu, memory_bytes=int(gpu.memory_bytes * GPU_MEMORY_SHARE))
    empty = Fit(half, usable, settings, 0)
    return replace(empty, pool_bytes=usable.memory_bytes - empty.total_bytes)


def fit_line(
    shape: ModelShape,
    settings: EngineSettings,
    *,
    name: str | None = None,
    memory_bytes: int | None = None,
) -> str:
    """What fits, in one line, for the start of an engine.

    name:         what the model is called; by default as its file calls it
    memory_bytes: free before the model is loaded; None leaves out whether it is enough
    """
    machine = Machine("this machine", memory_bytes or 0)
    fit = fit_machine(shape, settings, machine)
    short = min(1024, fit.context_tokens)
    counts = [f"{fit.at_once(fit.context_tokens):,} of {fit.context_tokens:,} tokens"]
    if short < fit.context_tokens:
        counts.append(f"{fit.at_once(short):,} of {short:,}")
    line = (
        f"{name or shape.name}: weights {mib(shape.weight_bytes)}; "
        f"KV {shape.kv_bytes_per_token / 1024:,.1f} KiB per token in {shape.kv_dtype}, "
        f"{mib(fit.pool_bytes)} hold {fit.pool_tokens:,} tokens; "
        f"activations up to {mib(fit.activation_bytes)}; "
        f"requests safely at once: {' or '.join(counts)}"
    )
    if memory_bytes is not None and fit.total_bytes > memory_bytes:
        line += f"; this needs {mib(fit.total_bytes)}, but only {mib(memory_bytes)} are free"
    return line


def lengths(fit: Fit) -> list[int]:
    """Lengths worth showing, ascending: powers of two up to the window, and the served context."""
    window = fit.shape.context_length
    powers = [1 << bits for bits in range(9, window.bit_length()) if 1 << bits <= window]
    return sorted({*powers, fit.context_tokens, window})


def mib(size_bytes: int) -> str:
    """`513 MiB`; from ten thousand on in GiB."""
    if size_bytes >= 10_000 * MIB:
        return f"{size_bytes / (1024 * MIB):,.1f} GiB"
    return f"{size_bytes / MIB:,.0f} MiB"


def _in_blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS
