"""Perplexity of a text: how well a model foretells each of its tokens from those before.

Windows of a fixed length move over the text by `stride`; a window scores the tokens that no
earlier one has, and so each token but the first is scored once. With a stride as long as the
window the first token of each window is left out: there is nothing to foretell it from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.likelihood import GivesLogits, Span, log_likelihoods
from engine.runner.base import BLOCK_TOKENS

CHUNK_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Window:
    """scored: the first of `tokens` that counts; the others are context"""

    tokens: Sequence[int]
    scored: int

    @property
    def num_scored(self) -> int:
        return len(self.tokens) - self.scored


def windows(ids: Sequence[int], length: int, stride: int) -> list[Window]:
    """Of `length` tokens, the last one as many as are left. Raises ValueError for a stride of 0
    or above `length`, which would skip text."""
    if not 1 <= stride <= length:
        raise ValueError(f"The stride must be from 1 to the window's {length}, not {stride}.")
    found, done = [], 0
    for start in range(0, len(ids), stride):
        tokens = ids[start : start + length]
        scored = max(1, done - start)
        if scored < len(tokens):
            found.append(Window(tokens, scored))
            done = start + len(tokens)
    return found


def score_window(executor: GivesLogits, window: Window) -> list[float]:
    """[the log-likelihood of its scored tokens, summed], read in chunks as the engine does."""
    blocks = range(-(-len(window.tokens) // BLOCK_TOKENS))
    end = len(window.tokens) - 1  # what follows the last token is not asked
    total = 0.0
    for start in range(0, end, CHUNK_TOKENS):
        span = Span(window.tokens, start, min(start + CHUNK_TOKENS, end), blocks, window.scored)
        total += float(log_likelihoods(executor, [span])[0].sum())
    return [total]


def perplexity(log_likelihood: float, tokens: int) -> float:
    return math.exp(-log_likelihood / tokens)
