"""How long a route's answers are, where some of them were cut.

An answer that ended at its limit would have been longer, nobody knows by how much: it is censored.
Leaving such answers out, or taking them for whole, makes the rest look shorter than they are; the
product-limit estimator (Kaplan and Meier 1958) uses of each what is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

_ROUNDING = 1e-9


class Lengths(msgspec.Struct, frozen=True):
    """answers:     how many were seen
    percentiles: [p - 1], for p of 1 to 99: the least number of tokens that p % of all answers do
                 not exceed; None where too many were cut before
    """

    answers: int
    percentiles: tuple[int | None, ...]

    def percentile(self, p: int) -> int | None:
        return self.percentiles[p - 1]


def lengths_of(observed: Iterable[tuple[int, bool]]) -> Lengths:
    """observed: tokens of each answer, and whether it was cut there. O(n log n)."""
    ended: Counter[int] = Counter()
    cut: Counter[int] = Counter()
    for tokens, was_cut in observed:
        (cut if was_cut else ended)[tokens] += 1
    answers = at_risk = ended.total() + cut.total()
    percentiles: list[int | None] = []
    longer = 1.0
    for tokens in sorted({*ended, *cut}):
        # What was cut at this length is longer than it.
        longer *= 1 - ended[tokens] / at_risk
        at_risk -= ended[tokens] + cut[tokens]
        while len(percentiles) < 99 and 1 - longer >= (len(percentiles) + 1) / 100 - _ROUNDING:
            percentiles.append(tokens)
    percentiles += [None] * (99 - len(percentiles))
    return Lengths(answers, tuple(percentiles))
