"""How long answers are that no learned limit has cut: those of the control arm."""

from __future__ import annotations

from engine.protocol.errors import Cancelled
from gateway.errors import SlowReader
from gateway.stores.ledger import LedgerStore, Look
from policies.lengths import Lengths, lengths_of

MOST_ANSWERS = 20_000
"""The latest; what a route's answers were like long ago says little of the next one."""


def control_lengths(store: LedgerStore, look: Look) -> Lengths:
    """As they were at the time of a look, so that every process that asks finds the same.

    An answer that a client did not wait for would have been longer, as one that was cut.
    """
    rows = store.answers(look.experiment, "control", look.time_s, MOST_ANSWERS)
    left = (Cancelled.code, SlowReader.code)
    return lengths_of(
        (tokens, bool(cut) or error in left)
        for tokens, cut, error in rows
        if error is None or error in left
    )
