"""The proposers of one sequence: who speaks, how far, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import NamedTuple

from engine.runner.base import Int32
from engine.speculate.acceptance import Acceptance
from engine.speculate.balance import Balance
from engine.speculate.base import Proposer
from engine.speculate.tally import Tally

MAX_DRAFT_TOKENS = 15
"""With the token before them 16 rows, which the native step multiplies in whole tiles."""
_GLANCE_EVERY = 8
"""Steps between two guesses of a proposer that does not pay: without a row, only to be compared."""


class _Guess(NamedTuple):
    proposer: Proposer
    tokens: list[int]


class Drafter:
    """Guesses for one sequence. What it remembers is a function of what the sequence has said.

    proposers: asked in the order of how often they were right
    """

    def __init__(self, proposers: Many[Proposer]) -> None:
        self._proposers = list(proposers)
        self._acceptance = {
            proposer.name: Acceptance(proposer.expected_acceptance) for proposer in proposers
        }
        self._guess: _Guess | None = None
        self._glances: list[_Guess] = []
        self._steps = 0

    def draft(
        self, tokens: Int32, prompt_tokens: int, balance: Balance, row_s: float, most: int
    ) -> list[int]:
        """The guess that goes into the next step: up to `most` tokens, or none.

        tokens, prompt_tokens: as `Proposer.propose` takes them
        row_s: seconds that one more row costs; `balance` is told of those taken
        """
        self._guess, self._glances = None, []
        self._steps += 1
        ordered = sorted(self._proposers, key=self._probability, reverse=True)
        for proposer in ordered:
            probability = self._probability(proposer)
            length = balance.length(probability, row_s, min(most, MAX_DRAFT_TOKENS))
            proposed = proposer.propose(tokens, prompt_tokens, length)[:length] if length else []
            if proposed:
                self._guess = _Guess(proposer, proposed)
                balance.add(probability, row_s, len(proposed))
                return proposed
        if most and self._steps % _GLANCE_EVERY == 0:
            self._look(tokens, prompt_tokens)
        return []

    def verified(self, drafted: int, first: int, accepted: int) -> str | None:
        """The step ran. `first` is the token that followed, `accepted` of `drafted` were right.

        Returns the name of the proposer whose guesses they were.
        """
        guess, glances = self._guess, self._glances
        self._guess, self._glances = None, []
        for glance in glances:
            right = glance.tokens[0] == first
            self._acceptance[glance.proposer.name].observe(right=right)
        if guess is None or drafted == 0:
            return None
        self._acceptance[guess.proposer.name].verified(drafted, accepted)
        return guess.proposer.name

    def tally(self, name: str) -> Tally:
        """What the proposer of this name has guessed for the sequence; nothing where none is."""
        acceptance = self._acceptance.get(name)
        return acceptance.tally if acceptance else Tally()

    def _probability(self, proposer: Proposer) -> float:
        return self._acceptance[proposer.name].probability

    def _look(self, tokens: Int32, prompt_tokens: int) -> None:
        """Have all guess for nothing: texts change, and who was wrong may be right again."""
        for proposer in self._proposers:
            if proposed := proposer.propose(tokens, prompt_tokens, 1):
                self._glances.append(_Guess(proposer, proposed))
