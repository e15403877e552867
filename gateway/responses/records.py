"""What is kept of responses, so that they can be asked for and gone on from.

A record is kept under a keyed hash of its id: only with the same tenant's salt can it be named, so
that another tenant's id and one that never was are the same.
"""

from __future__ import annotations

import hashlib
import logging
from typing import Any

import msgspec

from engine.protocol.errors import NotFound, ServiceError
from gateway.config import Config
from gateway.responses.items import Item
from gateway.stores.cache import KEY_BYTES, CacheStore
from gateway.stores.database import beside
from gateway.stores.opening import open_cache

SHOWN_ID_CHARS = 100
NO_TIME_S = 1.0
"""How long a store keeps the nothing that stands in the place of what was deleted."""

_FORMAT = b"fewer-response-1"
_log = logging.getLogger("fewer.responses")


class Record(msgspec.Struct, frozen=True):
    """One response.

    response: the object, as it was answered
    turns:    what was sent for it, former turns included
    """

    response: dict[str, Any]
    turns: list[list[Item]]

    @property
    def continued(self) -> list[list[Item]]:
        """The turns that go before the next one."""
        return [*self.turns, self.response["output"]]


_decoder = msgspec.json.Decoder(Record)
_encoder = msgspec.json.Encoder()


class Records:
    """One for a process; it outlasts every configuration. Closes `store`, if there is one.

    ttl_s: how long a response is kept
    """

    def __init__(self, store: CacheStore | None, ttl_s: float) -> None:
        self._store = store
        self._ttl_s = ttl_s

    @classmethod
    def of(cls, config: Config) -> Records:
        """In the store that the configuration asks for, which is opened at its first use."""
        settings = config.responses
        name = settings.store.reveal()
        if name == "none":
            return cls(None, settings.ttl_s)
        store = open_cache(
            name,
            beside(config.store, "responses"),
            b"fewer:response:",
            max_bytes=settings.max_mb * 1024 * 1024,
            deadline_s=settings.deadline_ms / 1000,
        )
        return cls(store, settings.ttl_s)

    def __repr__(self) -> str:
        return f"<Records of responses in {self._store!r}>"

    async def find(self, id: str, salt: str) -> Record:
        """Raises `NotFound` for what is not there, and a `ServiceError` when the store is away."""
        data = await self._store.get(_place(id, salt)) if self._store is not None else None
        if not data:
            raise not_found(id)
        try:
            return _decoder.decode(data)
        except msgspec.DecodeError:
            raise not_found(id) from None

    async def keep(self, record: Record, salt: str) -> bool:
        """Is it kept? An answer that could not be is given all the same."""
        if self._store is None:
            return False
        try:
            place = _place(record.response["id"], salt)
            await self._store.put(place, _encoder.encode(record), self._ttl_s)
        except ServiceError as error:
            _log.error("a response was not kept. %s", error.message)
            return False
        return True

    async def forget(self, id: str, salt: str) -> None:
        """Raises as `find` does."""
        await self.find(id, salt)
        if self._store is not None:
            await self._store.put(_place(id, salt), b"", NO_TIME_S)

    async def aclose(self) -> None:
        if self._store is not None:
            await self._store.aclose()


def not_found(id: str) -> NotFound:
    return NotFound(
        f"There is no response {id[:SHOWN_ID_CHARS]!r}: it was never kept, was deleted, or has "
        "made room for later ones.",
        code="response_not_found",
    )


def _place(id: str, salt: str) -> bytes:
    """Under which the store has it."""
    secret = hashlib.blake2b(salt.encode()).digest()
    return hashlib.blake2b(id.encode(), digest_size=KEY_BYTES, key=secret, person=_FORMAT).digest()
