"""Whether a guess is worth its row: tokens gained against seconds spent, over a whole step."""

from __future__ import annotations

LEAST_GAIN = 0.05
"""Tokens that a row must be expected to gain, were it free."""


class Balance:
    """Tokens and seconds of one step, as rows with guesses are added to it.

    A row pays when it gains more tokens a second than the step does without it. So single
    streams, whose steps mostly wait for weights, take long guesses, and full batches none.

    tokens:  that the step will produce
    seconds: that it will take; 0 where nothing is known yet, and then only LEAST_GAIN counts
    """

    def __init__(self, tokens: float, seconds: float) -> None:
        self._tokens, self._seconds = tokens, seconds

    def length(self, probability: float, row_s: float, most: int) -> int:
        """How many guesses pay, each right with `probability` if all before it are."""
        tokens, seconds = self._tokens, self._seconds
        gain, length = probability, 0
        while length < most and gain >= LEAST_GAIN and gain * seconds >= row_s * tokens:
            tokens, seconds = tokens + gain, seconds + row_s
            gain, length = gain * probability, length + 1
        return length

    def add(self, probability: float, row_s: float, count: int) -> None:
        """Put `count` guesses into the step."""
        gain = probability
        for _ in range(count):
            self._tokens, self._seconds = self._tokens + gain, self._seconds + row_s
            gain *= probability
