"""Proposers that know what will be said, and bend it: always right, never right, and worse."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.request import Request
from engine.runner.base import Int32
from engine.speculate.base import Guess, Proposer
from engine.speculate.speculator import Proposers

Bend = Callable[[list[int], int], list[int]]
"""What follows truly, and the size of the vocabulary, to what is guessed."""


class Bent(Proposer):
    """said: the whole output to come, as long as it is known"""

    name = "bent"

    def __init__(self, said: list[int], vocab_size: int, bend: Bend) -> None:
        self._said, self._vocab_size, self._bend = said, vocab_size, bend

    def propose(self, tokens: Int32, prompt_tokens: int, most: int) -> Guess | None:
        """More than `most`, where it knows more."""
        following = self._said[len(tokens) - prompt_tokens :]
        guessed = self._bend(following, self._vocab_size)
        return Guess(guessed, [0.99] * len(guessed)) if guessed else None


class Drawn(Proposer):
    """Guesses at random, from a few tokens or from all."""

    name = "drawn"

    def __init__(self, vocab: list[int], seed: int) -> None:
        self._vocab, self._random = vocab, np.random.default_rng(seed)

    def propose(self, tokens: Int32, prompt_tokens: int, most: int) -> Guess | None:
        count = int(self._random.integers(0, most + 1))
        drawn: list[int] = self._random.choice(self._vocab, count).tolist()
        return Guess(drawn, [0.99] * count) if drawn else None


def _wrong(following: list[int], vocab_size: int) -> list[int]:
    return [(token + 1) % vocab_size for token in following]


def bends(end_id: int) -> dict[str, Bend]:
    """By name. end_id: a token that ends an output"""
    return {
        "right": lambda following, size: following,
        "wrong": _wrong,
        "right-then-wrong": lambda following, size: following[:3] + _wrong(following[3:], size),
        "over-long": lambda following, size: following + [0] * 1000,
        "ended-inside": lambda following, size: [*following[:2], end_id, *following[2:]],
        "no-tokens": lambda following, size: [*following[:2], -5, size + 7, 2**40],
    }


def of_request(made: Callable[[Request], Proposer]) -> Proposers:
    """A core's `proposers`: one for each choice."""
    return lambda request, history: [made(request)]
