"""The explicit choice of an implementation. Nothing is swapped behind the caller's back."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

IMPLEMENTATIONS = ("reference",)


@functools.cache
def load(operation: str, implementation: str) -> ModuleType:
    """The module `kernels.{operation}.{implementation}`, imported now, and torch with it.

    Raises ValueError for an implementation that does not exist.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"{operation} has no implementation {implementation!r}; choose from "
            f"{', '.join(IMPLEMENTATIONS)}."
        )
    return importlib.import_module(f"kernels.{operation}.{implementation}")
