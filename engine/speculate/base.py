"""What guesses: one contract for tables, predictions, and models that draft."""

from __future__ import annotations

from abc import ABC, abstractmethod

from engine.runner.base import Int32


class Proposer(ABC):
    """Guesses for one sequence, and dies with it: what it knows, nobody else can be told.

    name:                as counters call it
    expected_acceptance: chance that its next token is right, before anything is known; in (0, 1)
    """

    name: str
    expected_acceptance: float

    @abstractmethod
    def propose(self, tokens: Int32, prompt_tokens: int, most: int) -> list[int]:
        """Up to `most` tokens that may follow; empty for no idea.

        tokens: int32[N], the prompt of `prompt_tokens` tokens and then all that was produced so
                far. What has become of earlier guesses is in it: they were right, or are not there.

        Any guess is legal: one that names no token of the vocabulary, or goes past the end, is
        cut. Called between two steps, on the core thread, so it must take microseconds.
        """
