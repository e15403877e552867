"""The ways to compute the same model whose answers are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from benchmarks.environments import REPOSITORY, converted
from benchmarks.likelihood import GivesLogits
from engine.protocol.settings import EngineSettings, ExecutorName, KvCacheDtype
from engine.runner.registry import open_executor
from engine.weights.gguf import GgufFile

POOL_BLOCKS = 1024
MAX_ROWS = 1024
_COMPUTING = ("engine/models", "engine/runner", "engine/weights")
"""Folders whose code decides what logits come out, beside the executor's own."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """weights: `as is`, what the model's file holds; `q8_0`: those values in 8 bits
    kv_dtype: of the cpu executor; the reference executor keeps float32"""

    executor: ExecutorName
    weights: str = "as is"
    kv_dtype: KvCacheDtype = "bfloat16"

    @property
    def name(self) -> str:
        return f"{self.executor}, {self.weights}, {self.kv} KV"

    @property
    def kv(self) -> str:
        return "float32" if self.executor == "reference" else self.kv_dtype

    @contextmanager
    def open(self, model: Path, threads: int, positions: int) -> Iterator[GivesLogits]:
        """With KV memory; sequences may have up to `positions` tokens."""
        path = model if self.weights == "as is" else converted(model, self.weights)
        settings = EngineSettings(
            max_model_len=positions,
            max_num_batched_tokens=MAX_ROWS,
            kv_cache_dtype=self.kv_dtype,
            threads=threads,
        )
        executor = cast("GivesLogits", open_executor(self.executor, GgufFile.open(path), settings))
        executor.allocate(POOL_BLOCKS)
        try:
            yield executor
        finally:
            executor.close()

    def digest(self, model_sha256: str) -> str:
        """Changes with the model, the configuration, and the code that computes."""
        found = hashlib.sha256(f"{model_sha256} {self.name}".encode())
        for path in sorted(self._sources()):
            found.update(path.name.encode() + path.read_bytes())
        return found.hexdigest()

    def _sources(self) -> Iterator[Path]:
        for folder in _COMPUTING:
            yield from (REPOSITORY / folder).glob("*.py")
        kernels = REPOSITORY / "kernels"
        native = kernels / "cpu"
        paths = native.iterdir() if self.executor == "cpu" else kernels.rglob("*.py")
        for path in paths:
            if path.is_file() and (self.executor == "cpu" or native not in path.parents):
                yield path


REFERENCE = Configuration("reference")
ALL = {
    "reference": REFERENCE,
    "cpu": Configuration("cpu"),
    "cpu-int8-kv": Configuration("cpu", kv_dtype="int8"),
    "cpu-q8_0": Configuration("cpu", "q8_0"),
}
