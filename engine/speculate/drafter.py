"""The proposers of one sequence: who speaks, how far, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass

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


@dataclass(slots=True)
class _Said:
    """What a proposer said, with the chances as its `Trust` has them.

    drafted: how many of the tokens were to go into the step
    """

    name: str
    tokens: list[int]
    chances: list[float]
    drafted: int = 0


class Drafter:
    """Guesses for one sequence. What it remembers is a function of what the sequence has said."""

    def __init__(self, proposers: Many[Proposer]) -> None:
        self._proposers = list(proposers)
        self._trust = {proposer.name: Trust() for proposer in proposers}
        self._tallies = {proposer.name: Tally() for proposer in proposers}
        self._said: list[_Said] = []

    def draft(
        self, tokens: Int32, prompt_tokens: int, balance: Balance, row_s: float, most: int
    ) -> list[int]:
        """The guess that goes into the next step: up to `most` tokens, or none.

        tokens, prompt_tokens: as `Proposer.propose` takes them
        row_s: seconds that one more row costs; `balance` is told of those taken
        """
        self._said = []
        most = min(most, MAX_DRAFT_TOKENS)
        if most <= 0 or balance.least_chance(row_s) > _HOPELESS:
            return []
        self._said = list(self._ask(tokens, prompt_tokens, most))
        if not self._said:
            return []
        surest = max(self._said, key=lambda said: said.chances[0])
        surest.drafted = balance.length(surest.chances[:most], row_s)
        balance.add(surest.chances[: surest.drafted], row_s)
        return surest.tokens[: surest.drafted]

    def verified(self, drafted: int, accepted: int, first: int) -> str | None:
        """The step ran: of `drafted` guesses `accepted` were right, and `first` is what followed.

        Returns the name of the proposer whose guesses they were.
        """
        all_said, self._said = self._said, []
        speaker = None
        for said in all_said:
            trust = self._trust[said.name]
            if not (said.drafted and drafted):
                # Without a row, its first token can be compared all the same: texts change, and
                # who was wrong may be right again.
                trust.observe(said.chances[0], right=said.tokens[0] == first)
                continue
            speaker = said.name
            self._tallies[speaker].add(drafted, accepted)
            for chance in said.chances[:accepted]:
                trust.observe(chance, right=True)
            if accepted < drafted:
                trust.observe(said.chances[accepted], right=False)
        return speaker

    def _ask(self, tokens: Int32, prompt_tokens: int, most: int) -> Iterator[_Said]:
        for proposer in self._proposers:
            guess = proposer.propose(tokens, prompt_tokens, most)
            if guess is not None:
                trust = self._trust[proposer.name]
                yield _Said(proposer.name, guess.tokens, [*map(trust.of, guess.chances)])

    def tally(self, name: str) -> Tally:
        """What the proposer of this name has guessed for the sequence; nothing where none is."""
        return self._tallies.get(name, Tally())
