"""Executors by name, and what a model will need under one, known without loading it."""

from __future__ import annotations

import logging
import os

from engine.models.registry import ModelOptions
from engine.protocol.errors import ModelFileError, SetupError
from engine.protocol.settings import EngineSettings, KvCacheDtype
from engine.runner.base import Executor, ModelShape
from engine.runner.cores import usable_cores
from engine.runner.shape import cpu_refusal, cpu_shape, reference_shape
from engine.weights.gguf import GgufFile
from kernels.cpu.build import BuildError, library

_logger = logging.getLogger("fewer.engine")


def open_executor(name: str, file: GgufFile, settings: EngineSettings) -> Executor:
    """Load the model's weights. `allocate` comes next.

    name: `auto` takes `cpu` where that can hold the model on this machine, else `reference`,
          and says in the log why

    Raises `ModelFileError` for a model that cannot be computed exactly, and `SetupError` for an
    executor that does not exist or cannot be built here. Imports torch only where it is needed.
    """
    options = ModelOptions.from_gguf(file)
    if resolve(name, file, options, settings.kv_cache_dtype) == "cpu":
        if refusal := cpu_refusal(file, options):
            raise ModelFileError(f"{refusal} Use --executor reference.")
        from engine.runner.cpu import CpuExecutor

        return CpuExecutor(file, options, settings)
    # OpenMP threads that spin while one of them has lost its core hold up the whole step: beside
    # other work, steps took ten times as long. Read once, when torch is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from engine.runner.reference import ReferenceExecutor

    return ReferenceExecutor(file, options, settings.threads or usable_cores())


def shape_of(
    file: GgufFile, executor: str, kv_cache_dtype: KvCacheDtype = "bfloat16"
) -> ModelShape:
    """The shape that `open_executor(executor, …)` will have, from the file's header alone.

    Raises as `open_executor` does.
    """
    options = ModelOptions.from_gguf(file)
    if resolve(executor, file, options, kv_cache_dtype) == "cpu":
        return cpu_shape(file, options, kv_cache_dtype)
    return reference_shape(options)


def resolve(
    name: str, file: GgufFile, options: ModelOptions, kv_cache_dtype: KvCacheDtype = "bfloat16"
) -> str:
    """`cpu` or `reference`. Compiles the native step where it is not in the cache yet.

    Raises `SetupError` for another name, for `cpu` where it cannot be built, and for int8 KV
    under `reference`.
    """
    if name == "reference":
        if kv_cache_dtype == "int8":
            raise SetupError(
                "kv_cache_dtype int8 needs the cpu executor: the reference executor keeps float32."
            )
        return name
    if name not in ("auto", "cpu"):
        raise SetupError(f"There is no executor {name!r}; there are: auto, cpu, reference.")
    refusal = cpu_refusal(file, options) if name == "auto" else None
    try:
        if refusal is None:
            library()
            return "cpu"
    except BuildError as error:
        if name == "cpu":
            raise SetupError(f"The cpu executor is not available here: {error}") from error
        refusal = str(error)
    _logger.warning("Taking the reference executor, which is slow: %s", refusal)
    if kv_cache_dtype == "int8":
        _logger.warning("kv_cache_dtype int8 does not hold here: that executor keeps float32.")
    return "reference"
