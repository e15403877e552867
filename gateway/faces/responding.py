"""What both transports of the Responses API share: from fields to a response that is kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from engine.protocol.errors import InvalidRequest, NotFound
from gateway.drain import Drain
from gateway.lifeline import Lifeline
from gateway.pipeline import Pipeline
from gateway.responses.asked import Asked
from gateway.responses.items import Item
from gateway.responses.projection import SERVER_SENT, Framing, ResponseProjection
from gateway.responses.records import Record, Records
from gateway.responses.running import Running
from gateway.visit import Visit

STORED = ("completed", "incomplete", "cancelled")
"""What ended otherwise can be neither asked for nor gone on from."""


class Responding:
    """One for a configuration."""

    def __init__(
        self, pipeline: Pipeline, drain: Drain, records: Records, running: Running
    ) -> None:
        self.pipeline = pipeline
        self.drain = drain
        self.running = running
        self._records = records

    async def begin(
        self,
        fields: dict[str, Any],
        route: str,
        visit: Visit,
        framing: Framing = SERVER_SENT,
        recent: dict[str, Record] | None = None,
    ) -> Response:
        """Raises `InvalidRequest` where what it goes on from is not there.

        fields: checked; recent: what a connection remembers by itself, by id
        """
        salt = visit.known_tenant.salt
        former = await self._former(fields.get("previous_response_id"), salt, recent or {})
        asked = Asked.of(fields, visit.call_id, former)
        id = f"resp_{visit.call_id}"
        described = asked.described(id, fields.get("model") or route)
        return Response(
            id=id,
            asked=asked,
            projection=ResponseProjection(visit.call_id, described, framing),
            salt=salt,
            records=self._records,
        )

    @contextmanager
    def noted(self, response: Response, lifeline: Lifeline) -> Iterator[None]:
        """It can be looked at and ended while the block lasts."""
        with self.running.noted(response.id, response.salt, response.projection, lifeline):
            yield

    async def _former(
        self, previous: str | None, salt: str, recent: dict[str, Record]
    ) -> list[list[Item]]:
        if previous is None:
            return []
        try:
            record = recent.get(previous) or await self._records.find(previous, salt)
        except NotFound as error:
            raise InvalidRequest(
                f"{error.message} Send the whole conversation as input.",
                param="previous_response_id",
                code="previous_response_not_found",
            ) from error
        return record.continued


class Response(msgspec.Struct, frozen=True):
    """One response on its way."""

    id: str
    asked: Asked
    projection: ResponseProjection
    salt: str
    records: Records

    @property
    def record(self) -> Record:
        return Record(self.projection.response(), self.asked.turns)

    def ending(self) -> Callable[[], Awaitable[bytes]]:
        """Keeps the response before its end is told, so that it can be gone on from at once."""

        async def end() -> bytes:
            told = self.projection.response()
            stored = bool(told["store"]) and told["status"] in STORED
            if stored:
                stored = await self.records.keep(Record(told, self.asked.turns), self.salt)
            return self.projection.closing(stored=stored)

        return end
