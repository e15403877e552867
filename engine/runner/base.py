"""The seam between the step loop and whatever computes a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.protocol.sampling import Sampling

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]
UInt32 = NDArray[np.uint32]

BLOCK_TOKENS = 16
"""Tokens in a KV block, everywhere."""


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One row of the batch whose next token is wanted.

    row:      index into `Batch.tokens`
    sampling: the request's parameters
    seed:     64-bit key of the noise, already mixed from the request's seed and the choice
    position: absolute position of the token to be sampled (prompt length + produced so far)
    prompt:   int32[P], the prompt's ids (for the repetition penalty)
    output:   int32[O], ids produced so far (for all penalties and min_tokens)
    end_ids:  ids that would end the output now: masked while O < min_tokens
    mask:     uint32[ceil(V / 32)], the bit of every token that the request's grammar lets come,
              lowest first; None where all may
    """

    row: int
    sampling: Sampling
    seed: int
    position: int
    prompt: Int32
    output: Int32
    end_ids: frozenset[int]
    mask: UInt32 | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """One step: S segments (prefill chunks and decodes alike) laid end to end in T rows.

    tokens:      int32[T]
    positions:   int32[T], absolute
    slots:       int32[T], where each row's K and V go: block * BLOCK_TOKENS + offset
    query_start: int32[S + 1], rows of segment s are query_start[s] : query_start[s + 1]
    context_len: int32[S], tokens of the sequence that are in KV after this step's writes
    block_table: int32[S, W], -1 beyond a sequence's blocks
    samples:     the rows to sample, in row order; a prefill chunk that is not the last has none
    """

    tokens: Int32
    positions: Int32
    slots: Int32
    query_start: Int32
    context_len: Int32
    block_table: Int32
    samples: tuple[SampleRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Sampled:
    """The outcome of one `SampleRow`.

    token:    the id chosen; -1 when the parameters leave no token to choose
    logprob:  of the chosen token under the raw distribution; NaN unless asked for
    top_ids:  int32[K], the K most likely ids, descending; empty unless asked for
    top_logprobs: float32[K]
    """

    token: int
    logprob: float = float("nan")
    top_ids: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    top_logprobs: Float32 = field(default_factory=lambda: np.empty(0, np.float32))


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What scheduling and memory planning need to know of a model."""

    name: str
    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    """The model's own window, in tokens."""
    num_weights: int
    """Weights, whatever they are kept in."""
    weight_bytes: int
    """Bytes of weights as the executor keeps them."""
    kv_bytes_per_token: int
    """Bytes of K and V for one token over all layers, as the executor keeps them."""
    kv_dtype: str
    """What K and V are kept in: `float32`, `bfloat16` or `int8`."""
    activation_bytes_per_token: int
    """Peak bytes of temporaries for each row of a step."""
    precision: str
    """What weights and KV are kept in, in words."""


class Executor(ABC):
    """Computes steps. Owns weights and the KV memory; knows nothing of requests.

    Called from one thread. `run` writes K and V of every row, then attends, then samples.
    Rows are independent: the result of a row depends on its own sequence only, never on the
    batch around it, the chunk it came in, or where its blocks lie.
    """

    name: str
    shape: ModelShape

    @abstractmethod
    def allocate(self, num_blocks: int) -> None:
        """Take the KV memory: `num_blocks` blocks of BLOCK_TOKENS tokens. Called once."""

    @abstractmethod
    def run(self, batch: Batch) -> list[Sampled]:
        """Compute one step. Returns one `Sampled` for each of `batch.samples`, in order."""

    @abstractmethod
    def close(self) -> None:
        """Give the memory back. The executor is not used afterwards."""
