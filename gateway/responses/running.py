"""Responses that are being written in this process, so that a client can look at or end one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import Stopped
from gateway.lifeline import Lifeline
from gateway.responses.projection import ResponseProjection


class Running:
    """By tenant's salt and id: nobody finds another tenant's."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], tuple[ResponseProjection, Lifeline]] = {}

    def __repr__(self) -> str:
        return f"<Running {len(self._running)} responses>"

    @contextmanager
    def noted(
        self, id: str, salt: str, projection: ResponseProjection, lifeline: Lifeline
    ) -> Iterator[None]:
        """It can be found while the block lasts."""
        self._running[salt, id] = projection, lifeline
        try:
            yield
        finally:
            del self._running[salt, id]

    def find(self, id: str, salt: str) -> ResponseProjection | None:
        found = self._running.get((salt, id))
        return None if found is None else found[0]

    def stop(self, id: str, salt: str) -> ResponseProjection | None:
        """End it, unless it is about to; None where it does not run."""
        found = self._running.get((salt, id))
        if found is None:
            return None
        projection, lifeline = found
        if not projection.ended:
            lifeline.cut(Stopped("The client has cancelled this response."))
        return projection
