"""What somebody thinks of an answer."""

from __future__ import annotations

import msgspec


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
