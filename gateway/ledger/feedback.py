"""What somebody thinks of an answer."""

from __future__ import annotations

import re

import msgspec

_ANSWER_ID = re.compile(r"[a-z]+[-_]([0-9a-f]{32})")
"""As faces make them of the id of a call."""


class Feedback(msgspec.Struct, frozen=True):
    """What somebody thinks of an answer.

    tenant:     who says so
    request_id: as the client was told it, or as it called the request itself
    call_id:    as the gateway calls it, where that can be read from the other
    score:      -1 to 1
    """

    tenant: str
    request_id: str
    call_id: str
    score: float
    given_s: float
    label: str | None = None

    @property
    def approval(self) -> float:
        """0 to 1."""
        return (self.score + 1) / 2


def call_id_of(id: str) -> str:
    """The call's id in the id of its answer; any other id as it is."""
    named = _ANSWER_ID.fullmatch(id)
    return named[1] if named else id
