"""What a GGUF file says of the model inside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a GGUF file's header says of the model. Sizes in bytes, lengths in tokens."""

    architecture: str
    quantisation: str
    context_length: int
    size_bytes: int

    @classmethod
    def read(cls, path: Path) -> ModelCard:
        """Raises ModelFileError for a file that is missing, cut short or no GGUF."""
        from engine.weights.gguf import GgufFile

        file = GgufFile.open(path)
        architecture = str(file.metadata.get("general.architecture", "unknown"))
        bytes_by_type: dict[str, int] = {}
        for tensor in file.tensors.values():
            name = tensor.type.name
            bytes_by_type[name] = bytes_by_type.get(name, 0) + tensor.size_bytes
        return cls(
            architecture=architecture,
            quantisation=max(bytes_by_type, key=lambda name: bytes_by_type[name], default="none"),
            context_length=int(file.metadata.get(f"{architecture}.context_length", 0)),
            size_bytes=path.stat().st_size,
        )
