"""What a text is about, as a vector: the static word embeddings of WordLlama.

Each token has a vector of its own, and a text's is their mean: no model is run, so it costs tens of
microseconds and knows no word order ("no refund" and "refund, no?" are near each other).
Whoever acts on it must look at what it is blind to. https://github.com/dleemiller/WordLlama.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.protocol.errors import SetupError

Vector = NDArray[np.float32]
Embed = Callable[[str], Vector]

MAX_CHARS = 20_000
"""Of a longer text as much is read, half of it from the beginning and half from the end."""

_PACKAGE = "wordllama"
_TOKENIZER = Path("tokenizers", "l2_supercat_tokenizer_config.json")
_WEIGHTS = Path("weights", "l2_supercat_256.safetensors")


class StaticEmbedding:
    """vectors: of each token, [vocabulary, dimensions]."""

    def __init__(self, tokenizer: Path, weights: Path) -> None:
        """Raises `SetupError` where the files, or the packages that read them, are missing."""
        try:
            from safetensors.numpy import load_file
            from tokenizers import Tokenizer

            (vectors,) = load_file(weights).values()
            self._tokenizer_file = tokenizer.read_bytes()
            self._tokenizer = Tokenizer.from_buffer(self._tokenizer_file)
        except (ImportError, OSError) as error:
            raise SetupError(f"The text embedding cannot be loaded: {error}. {_ADVICE}") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._vectors = vectors.astype(np.float32)

    @cached_property
    def fingerprint(self) -> str:
        """Of its vectors and the file of its tokenizer: of two that differ another one."""
        digest = hashlib.blake2b(self._vectors.tobytes(), digest_size=16)
        digest.update(self._tokenizer_file)
        return digest.hexdigest()

    @property
    def dimensions(self) -> int:
        return int(self._vectors.shape[1])

    def __call__(self, text: str) -> Vector:
        """[dimensions], of length 1, so that a product of two is their cosine; zero for no text."""
        if len(text) > MAX_CHARS:
            text = text[: MAX_CHARS // 2] + text[-MAX_CHARS // 2 :]
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        if not ids:
            return np.zeros(self.dimensions, np.float32)
        mean: Vector = self._vectors[ids].mean(axis=0)
        length = float(np.linalg.norm(mean))
        return mean / length if length else mean


_ADVICE = f"It comes with: {sys.executable} -m pip install 'fewer[semantic]'"


@cache
def bundled() -> StaticEmbedding:
    """The one that the extra `semantic` installs; loaded once, 33 MB, in about 0.1 s.

    Its package's own loader is not used: it looks for its files elsewhere, and on the network.
    Raises `SetupError`.
    """
    found = find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise SetupError(f"The text embedding is not installed. {_ADVICE}")
    folder = Path(found.origin).parent
    return StaticEmbedding(folder / _TOKENIZER, folder / _WEIGHTS)
