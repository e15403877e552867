"""Whether a guess is worth its row: tokens gained against seconds spent, over a whole step."""

from __future__ import annotations

from collections.abc import Iterable

LEAST_GAIN = 0.05
"""Tokens that a row must be expected to gain, were it free."""
_MARGIN = 1.25
"""What a row must gain, over what it takes: chances and costs are estimates, those that look best
are overestimated more often than not, and each row has work around it that is not in the step."""


class Balance:
    """Tokens and seconds of one step, as rows with guesses are added to it.

    A row pays when it gains more tokens a second than the step does without it. So single
    streams, whose steps mostly wait for weights, take long guesses, and full batches none.

    tokens:  that the step will produce
    seconds: that it will take; 0 where nothing is known yet, and then only LEAST_GAIN counts
    """

    def __init__(self, tokens: float, seconds: float) -> None:
        self._tokens, self._seconds = tokens, seconds

    def least_chance(self, row_s: float) -> float:
        """Below this not even a single guess pays, whose row takes `row_s` seconds."""
        if self._seconds <= 0:
            return LEAST_GAIN
        return max(LEAST_GAIN, _MARGIN * row_s * self._tokens / self._seconds)

    def length(self, chances: Iterable[float], row_s: float) -> int:
        """How many guesses pay, each right with its chance if all before it are."""
        trial = Balance(self._tokens, self._seconds)
        gain, length = 1.0, 0
        for chance in chances:
            gain *= chance
            if gain < trial.least_chance(row_s):
                break
            trial._add(gain, row_s)
            length += 1
        return length

    def add(self, chances: Iterable[float], row_s: float) -> None:
        """Put guesses into the step."""
        gain = 1.0
        for chance in chances:
            gain *= chance
            self._add(gain, row_s)

    def _add(self, gain: float, row_s: float) -> None:
        self._tokens += gain
        self._seconds += row_s
