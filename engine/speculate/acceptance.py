"""How often the guesses of one proposer have been right for one sequence."""

from __future__ import annotations

from engine.speculate.tally import Tally

_LEARNING_RATE = 0.15
"""Weight of the latest guess: the last dozen are most of what is remembered."""


class Acceptance:
    """probability: that the next token proposed is right, if all before it were; an estimate
    tally:       of what steps have verified
    """

    __slots__ = ("probability", "tally")

    def __init__(self, probability: float) -> None:
        self.probability = probability
        self.tally = Tally()

    def verified(self, drafted: int, accepted: int) -> None:
        """A step verified `drafted` tokens: what follows the first wrong one says nothing."""
        self.tally.add(drafted, accepted)
        for _ in range(accepted):
            self.observe(right=True)
        if accepted < drafted:
            self.observe(right=False)

    def observe(self, *, right: bool) -> None:
        self.probability += (right - self.probability) * _LEARNING_RATE
