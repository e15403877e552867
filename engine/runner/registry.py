"""Executors by name, and what a model will need under one, known without loading it."""

from __future__ import annotations

import os

from engine.models.registry import ModelOptions
from engine.protocol.errors import SetupError
from engine.protocol.settings import EngineSettings
from engine.runner.base import Executor, ModelShape
from engine.runner.shape import reference_shape
from engine.weights.gguf import GgufFile


def open_executor(name: str, file: GgufFile, settings: EngineSettings) -> Executor:
    """Load the model's weights. `allocate` comes next.

    Raises `ModelFileError` for a model that cannot be computed exactly, and `SetupError` for an
    executor that does not exist. Imports torch only where the executor needs it.
    """
    options = ModelOptions.from_gguf(file)
    if name != "reference":
        raise _unknown(name)
    # OpenMP threads that spin while one of them has lost its core hold up the whole step: beside
    # other work, steps took ten times as long. Read once, when torch is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from engine.runner.reference import ReferenceExecutor

    return ReferenceExecutor(file, options, settings.threads or _cores())


def shape_of(file: GgufFile, executor: str) -> ModelShape:
    """The shape that `open_executor(executor, …)` will have, from the file's header alone.

    Raises as `open_executor` does.
    """
    if executor != "reference":
        raise _unknown(executor)
    return reference_shape(ModelOptions.from_gguf(file))


def _cores() -> int:
    """Those this process may use, which in a container are fewer than the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _unknown(name: str) -> SetupError:
    return SetupError(f"There is no executor {name!r}; there is: reference.")
