"""Guesses for the sequences of a step, by whom they are made, and what came of them."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many

from engine.protocol.settings import Speculation
from engine.request import Request
from engine.sequence import Sequence
from engine.speculate.balance import Balance
from engine.speculate.base import Proposer
from engine.speculate.drafter import Drafter
from engine.speculate.history import SHORTEST_ANSWER, Histories, History, HistoryProposer
from engine.speculate.ngram import NgramProposer
from engine.speculate.prediction import PredictionProposer
from engine.speculate.tally import Tally
from engine.speculate.verify import Run
from engine.step_time import StepTimeModel

Proposers = Callable[[Request, History], Many[Proposer]]
"""Makes the proposers of one choice of a request, given what its tenant's answers said lately."""


class Speculator:
    """Puts guesses behind the last tokens of sequences that decode.

    vocab_size: tokens that the executor can compute
    """

    def __init__(self, step_time: StepTimeModel, proposers: Proposers, vocab_size: int) -> None:
        self._step_time, self._proposers, self._vocab_size = step_time, proposers, vocab_size
        self._histories = Histories()
        self.tallies: dict[str, Tally] = {}

    def drafter_for(self, request: Request) -> Drafter | None:
        """A new drafter for one choice; None where nobody would guess."""
        proposers = self._proposers(request, self._histories.of(request.tenant, request.salt))
        return Drafter(proposers) if proposers else None

    def balance(self, rows: int, reads: float) -> Balance:
        """Of a step of `rows` decodes, to which guesses may be added."""
        return Balance(rows, self._step_time.predict_s(rows, reads))

    def draft(self, sequence: Sequence, balance: Balance, most: int) -> int:
        """Guess what follows a sequence that has one row in the step, as far as it pays.

        most: rows that the step, and tokens that the sequence's blocks, have room for

        The guesses stand behind the sequence's tokens; how many is returned.
        """
        if sequence.drafter is None:
            return 0
        # The last token that it may have is never guessed: it would need no row.
        most = min(most, sequence.max_tokens - sequence.output_tokens - 1)
        row_s = self._step_time.row_s(sequence.num_tokens)
        tokens = sequence.tokens(0, sequence.num_tokens)
        drafts = sequence.drafter.draft(tokens, sequence.prompt_tokens, balance, row_s, most)
        usable = self._usable(drafts, sequence)
        sequence.guess(drafts[:usable])
        return usable

    def _usable(self, drafts: list[int], sequence: Sequence) -> int:
        """How many stand before the first that no row can hold, or after which none is wanted."""
        for count, token in enumerate(drafts):
            if token in sequence.end_ids or not 0 <= token < self._vocab_size:
                drafts = drafts[:count]
                break
        if sequence.grammar is not None:
            return sequence.grammar.usable(sequence.output, drafts)
        return len(drafts)

    def observe(self, run: Run) -> None:
        """Learn what came of the guesses for a sequence."""
        drafter = run.sequence.drafter
        if drafter is None or not run.sampled:
            return
        name = drafter.verified(run.drafted, run.accepted, run.sampled[0].token)
        if name is not None:
            self.tallies.setdefault(name, Tally()).add(run.drafted, run.accepted)

    def ended(self, sequence: Sequence) -> None:
        """Remember what a sequence has said, for its tenant alone."""
        if sequence.drafter is not None and sequence.output_tokens >= SHORTEST_ANSWER:
            request = sequence.request
            self._histories.of(request.tenant, request.salt).add(sequence.output)


def proposers_for(speculation: Speculation) -> Proposers:
    """The proposers that a setting stands for."""
    return _none if speculation == "off" else _all


def _none(request: Request, history: History) -> list[Proposer]:
    return []


def _all(request: Request, history: History) -> list[Proposer]:
    own: list[Proposer] = [NgramProposer(), HistoryProposer(history)]
    if request.prediction is None:
        return own
    return [PredictionProposer(request.prediction), *own]
