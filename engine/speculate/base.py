"""What guesses: one contract for tables, predictions, and models that draft."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from engine.runner.base import Int32


class Guess(NamedTuple):
    """Tokens that may follow, and for each the chance that it is right if all before it are.

    Chances are in (0, 1) and need not be good: how far to trust a proposer is learned.
    """

    tokens: list[int]
    chances: list[float]


class Proposer(ABC):
    """Guesses for one sequence, and dies with it: what it knows, nobody else can be told.

    name: as counters call it
    """

    name: str

    @abstractmethod
    def propose(self, tokens: Int32, prompt_tokens: int, most: int) -> Guess | None:
        """Up to `most` tokens that may follow, at least one; None for no idea.

        tokens: int32[N], the prompt of `prompt_tokens` tokens and then all that was produced so
                far. What has become of earlier guesses is in it: they were right, or are not there.

        Any token is legal: one that is not in the vocabulary, or would end the sequence, is cut.
        Called between two steps, on the core thread, so it must take microseconds.
        """
