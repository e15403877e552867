"""The proposers of one sequence: who speaks, how far, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import NamedTuple

from engine.runner.base import Int32
from engine.speculate.balance import Balance
from engine.speculate.base import Proposer
from engine.speculate.tally import Tally
from engine.speculate.trust import Trust

MAX_DRAFT_TOKENS = 15
"""With the token before them 16 rows, which the native step multiplies in whole tiles."""
_HOPELESS = 0.8
"""Where less than this chance does not pay, guesses are not even asked for: so it is in large
batches, where looking costs time too."""


class _Asked(NamedTuple):
    """What a proposer said, and the chances as its `Trust` has them. drafted: goes into the step"""

    name: str
    tokens: list[int]
    chances: list[float]
    drafted: int


class Drafter:
    """Guesses for one sequence. What it remembers is a function of what the sequence has said."""

    def __init__(self, proposers: Many[Proposer]) -> None:
        self._proposers = list(proposers)
        self._trust = {proposer.name: Trust() for proposer in proposers}
        self._tallies = {proposer.name: Tally() for proposer in proposers}
        self._asked: list[_Asked] = []

    def draft(
        self, tokens: Int32, prompt_tokens: int, balance: Balance, row_s: float, most: int
    ) -> list[int]:
        """The guess that goes into the next step: up to `most` tokens, or none.

        tokens, prompt_tokens: as `Proposer.propose` takes them
        row_s: seconds that one more row costs; `balance` is told of those taken
        """
        self._asked = []
        most = min(most, MAX_DRAFT_TOKENS)
        if most <= 0 or balance.least_chance(row_s) > _HOPELESS:
            return []
        for proposer in self._proposers:
            if (guess := proposer.propose(tokens, prompt_tokens, most)) is not None:
                trust = self._trust[proposer.name]
                chances = [trust.of(chance) for chance in guess.chances]
                self._asked.append(_Asked(proposer.name, guess.tokens, chances, 0))
        if not self._asked:
            return []
        best = max(range(len(self._asked)), key=lambda index: self._asked[index].chances[0])
        name, guessed, chances, _ = self._asked[best]
        length = balance.length(chances[:most], row_s)
        balance.add(chances[:length], row_s)
        self._asked[best] = _Asked(name, guessed, chances, length)
        return guessed[:length]

    def verified(self, drafted: int, accepted: int, first: int) -> str | None:
        """The step ran: of `drafted` guesses `accepted` were right, and `first` is what followed.

        Returns the name of the proposer whose guesses they were.
        """
        asked, self._asked = self._asked, []
        speaker = None
        for one in asked:
            trust = self._trust[one.name]
            if one.drafted == 0 or drafted == 0:
                # Without a row, its first token can be compared all the same: texts change, and
                # who was wrong may be right again.
                trust.observe(one.chances[0], right=one.tokens[0] == first)
                continue
            speaker = one.name
            self._tallies[speaker].add(drafted, accepted)
            for chance in one.chances[:accepted]:
                trust.observe(chance, right=True)
            if accepted < drafted:
                trust.observe(one.chances[accepted], right=False)
        return speaker

    def tally(self, name: str) -> Tally:
        """What the proposer of this name has guessed for the sequence; nothing where none is."""
        return self._tallies.get(name, Tally())
