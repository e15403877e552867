"""Accept iff equal: from the tokens sampled in a step to those that its sequences have said."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import NamedTuple

from engine.runner.base import Sampled
from engine.sequence import Sequence


class Run(NamedTuple):
    """What a step gives one sequence.

    sampled: the engine's own tokens, in order; all but the last were guessed right. None where an
             answer that must close could not after its token: it is sampled again
    drafted: guesses that the step verified
    """

    sequence: Sequence
    sampled: list[Sampled]
    drafted: int

    @property
    def accepted(self) -> int:
        return len(self.sampled) - 1

    @property
    def rejected(self) -> int:
        return self.drafted - self.accepted


def verify(owners: Many[Sequence], sampled: Many[Sampled]) -> list[Run]:
    """The run of each sequence that was sampled from, in order.

    owners: of each sampled row. A sequence owns as many in a row as it had guesses, and one.
    """
    rows: dict[Sequence, list[Sampled]] = {}
    for sequence, one in zip(owners, sampled, strict=True):
        rows.setdefault(sequence, []).append(one)
    return [_run(sequence, own) for sequence, own in rows.items()]


def _run(sequence: Sequence, own: list[Sampled]) -> Run:
    """Up to and with the first token that was not guessed: later rows continue another text."""
    drafted = len(own) - 1
    first = sequence.num_tokens
    drafts = sequence.tokens(first, first + drafted).tolist()
    accepted = 0
    while accepted < drafted and own[accepted].token == drafts[accepted]:
        accepted += 1
    sampled = own[: accepted + 1]
    if sequence.grammar is not None:
        kept = sequence.grammar.keep(sequence.output, [one.token for one in sampled])
        sampled = sampled[:kept]
    return Run(sequence, sampled, drafted)
