"""How much better, or worse, one proposer does for one sequence than it thinks."""

from __future__ import annotations

import math

_LEARNING_RATE = 0.2
_LIMIT = 4.0


class Trust:
    """A shift of log-odds, learned by logistic regression, a step for each guess that was seen."""

    __slots__ = ("_shift",)

    def __init__(self) -> None:
        self._shift = 0.0

    def of(self, chance: float) -> float:
        """The chance, in (0, 1), that the proposer's `chance` has come to mean."""
        return 1 / (1 + (1 - chance) / chance * math.exp(-self._shift))

    def observe(self, chance: float, *, right: bool) -> None:
        """What `of` had made `chance` came true, or not."""
        shift = self._shift + _LEARNING_RATE * (right - chance)
        self._shift = max(-_LIMIT, min(_LIMIT, shift))
