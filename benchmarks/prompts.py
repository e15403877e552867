"""Prompts of exact lengths in tokens, from this repository's own prose."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from engine.text.tokenizer import Tokenizer
from engine.weights.gguf import GgufFile

REPOSITORY = Path(__file__).parents[1]
OPENING_TOKENS = 4
"""Drawn anew for each prompt, so that no server finds it in its prefix cache."""


class Prompts:
    """Draws prompts from a corpus. Lengths and places repeat from run to run, openings do not.

    ids: the corpus as tokens; repeated where it is too short
    """

    def __init__(self, ids: Sequence[int], seed: int = 0) -> None:
        if not ids:
            raise ValueError("The corpus is empty.")
        self._ids = list(ids)
        self.random = np.random.default_rng(seed)

    @classmethod
    def of_model(cls, model: Path, seed: int = 0) -> Prompts:
        """From the repository's documentation, in the tokens of the GGUF file `model`."""
        text = "".join(path.read_text() for path in sorted(REPOSITORY.glob("docs/*.md")))
        return cls(Tokenizer.from_gguf(GgufFile.open(model).metadata).encode(text), seed)

    def draw(self, tokens: int) -> list[int]:
        """A prompt that shares its beginning with no other."""
        opening = [secrets.choice(self._ids) for _ in range(min(tokens, OPENING_TOKENS))]
        return opening + self._slice(tokens - len(opening))

    def draw_sharing(self, count: int, shared: int, own: int) -> list[list[int]]:
        """`count` prompts of `shared` equal tokens, and then `own` of each one's own."""
        beginning = self.draw(shared)
        return [beginning + self.draw(own) for _ in range(count)]

    def lengths(self, shortest: int, longest: int, count: int) -> list[int]:
        """Drawn evenly, both ends included."""
        return [int(n) for n in self.random.integers(shortest, longest + 1, count)]

    def _slice(self, tokens: int) -> list[int]:
        start = int(self.random.integers(len(self._ids)))
        turned = self._ids[start:] + self._ids[:start]
        return (turned * (tokens // len(turned) + 1))[:tokens]
