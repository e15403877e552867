"""The reference executor: plain torch on the CPU, float32 weights and KV. It is the meaning.

KV is float32 because this executor says what the right answer is: attention inside a chunk reads
exactly what later steps will read, and nothing is lost on the way. Every row's bits depend on
its own sequence only; `kernels` explains operation by operation how that is kept.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.models.decoder import Decoder, DecoderStep, LayerCache, Queries
from engine.models.parameters import load_parameters
from engine.models.registry import ModelOptions
from engine.runner.base import BLOCK_TOKENS, Batch, Executor, Int32, Sampled
from engine.runner.batch import check_batch
from engine.runner.shape import reference_shape
from engine.sampling.sampler import sample
from engine.weights.gguf import GgufFile
from kernels.paged_attention import CacheShape, plan_attention

_ROW_MULTIPLE = 8
"""Steps are padded to this once, so that `linear` need not pad in every layer."""


class ReferenceExecutor(Executor):
    """Owns the dequantised weights and, after `allocate`, the KV memory.

    threads: CPU threads of torch, for the whole process
    """

    name = "reference"

    def __init__(self, file: GgufFile, options: ModelOptions, threads: int) -> None:
        self.shape = reference_shape(options)
        self._threads = threads
        self._decoder: Decoder | None = Decoder(options, load_parameters(file, options, threads))
        self._caches: list[LayerCache] = []
        self._cache_shape: CacheShape | None = None

    def allocate(self, num_blocks: int) -> None:
        if self._cache_shape is not None:
            raise RuntimeError("The KV memory is allocated already.")
        shape = self.shape
        self._cache_shape = CacheShape(
            shape.heads, shape.kv_heads, num_blocks, BLOCK_TOKENS, shape.head_dim
        )
        sizes = (shape.layers, 2, shape.kv_heads, num_blocks, BLOCK_TOKENS, shape.head_dim)
        # numpy's zeros are mapped on first touch; torch's are written at once.
        memory = torch.from_numpy(np.zeros(sizes, np.float32))
        self._caches = [LayerCache(key, value) for key, value in memory]

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[Sampled]:
        """Raises ValueError for a batch that contradicts itself or leaves the KV memory."""
        logits = self.logits(batch)
        return sample(logits.numpy(), batch.samples) if batch.samples else []

    @torch.inference_mode()
    def logits(self, batch: Batch) -> Tensor:
        """float32[len(batch.samples), vocabulary]: the step without its last part, the sampling."""
        if self._decoder is None or self._cache_shape is None:
            raise RuntimeError(
                "The executor has no memory: allocate it first, and do not close it."
            )
        check_batch(batch, self.shape, self._cache_shape.blocks)
        if torch.get_num_threads() != self._threads:  # the setting belongs to the calling thread
            torch.set_num_threads(self._threads)
        step = self._step(batch, self._decoder, self._cache_shape)
        return self._decoder.forward(step, self._caches)[: len(batch.samples)]

    def close(self) -> None:
        self._decoder = None
        self._caches = []

    def _step(self, batch: Batch, decoder: Decoder, cache: CacheShape) -> DecoderStep:
        positions = _padded(batch.positions)
        cos, sin = decoder.parameters.cos, decoder.parameters.sin
        plan = plan_attention(batch.query_start, batch.context_len, batch.block_table, cache)
        rows = np.array([sample.row for sample in batch.samples], np.int32)
        segments = np.searchsorted(batch.query_start, rows, side="right") - 1
        sampled_plan = plan_attention(
            np.arange(len(rows) + 1), batch.positions[rows] + 1, batch.block_table[segments], cache
        )
        sampled = _padded(rows)
        sampled_positions = positions[sampled]
        return DecoderStep(
            tokens=_padded(batch.tokens),
            slots=torch.from_numpy(batch.slots.astype(np.int64)),
            all=Queries(None, cos[positions], sin[positions], plan),
            sampled=Queries(sampled, cos[sampled_positions], sin[sampled_positions], sampled_plan),
        )


def _padded(values: Int32) -> Tensor:
    """int64, with zeros up to a multiple of `_ROW_MULTIPLE`."""
    padded = np.zeros(-(-len(values) // _ROW_MULTIPLE) * _ROW_MULTIPLE, np.int64)
    padded[: len(values)] = values
    return torch.from_numpy(padded)
