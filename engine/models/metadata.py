"""Typed reading of the metadata that belong to a file's architecture."""

from __future__ import annotations

import math
from typing import Any

from engine.protocol.errors import ModelFileError
from engine.weights.gguf import GgufFile


class Metadata:
    """Values under `{architecture}.`; a missing or senseless one is a `ModelFileError`."""

    def __init__(self, file: GgufFile) -> None:
        architecture = file.metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise ModelFileError(f"{file.path}: general.architecture is missing.")
        self.architecture = architecture
        self._file = file

    def get(self, key: str, default: Any = None) -> Any:
        return self._file.metadata.get(f"{self.architecture}.{key}", default)

    def count(self, key: str, default: int | None = None, *, most: int = 1 << 31) -> int:
        """A whole number from 1 to `most`. A list, one for each layer, must hold one value."""
        value = self.get(key, default)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        if type(value) is not int or not 1 <= value <= most:
            raise self._wrong(key, f"a whole number from 1 to {most}", value)
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if type(value) not in (int, float) or not (math.isfinite(value) and value > 0):
            raise self._wrong(key, "a number above 0", value)
        return float(value)

    def _wrong(self, key: str, wanted: str, value: object) -> ModelFileError:
        found = "missing" if value is None else repr(value)[:80]
        return ModelFileError(
            f"{self._file.path}: {self.architecture}.{key} must be {wanted}, but is {found}."
        )

    def refuse(self, key: str, reason: str) -> ModelFileError:
        """The error for a value that is well formed and still cannot be served."""
        return ModelFileError(
            f"{self._file.path}: {self.architecture}.{key} is {self.get(key)!r}; {reason}."
        )
