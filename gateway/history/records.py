"""Where records of conversations are kept, and what happens when the store fails.

A record is kept under a keyed hash of what it is about: only who has sent those very messages, with
the same tenant's salt and on the same route, can name it. So nothing crosses tenants, and nothing
one conversation whose messages another does not have.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Sequence

from engine.protocol.errors import ServiceError
from gateway.config import Config, RecordsConfig
from gateway.stores.cache import KEY_BYTES, CacheStore
from gateway.stores.cache_memory import MemoryCacheStore
from gateway.stores.database import beside
from gateway.stores.opening import open_cache
from gateway.telemetry.metrics import Metrics

ENOUGH = 2
"""Of the keys that a policy names, the first are of most use: the record of the next cut and the
one that holds. More are not looked for."""

NEAR_S = 300.0
NEAR_BYTES = 4 * 1024 * 1024
"""What was read lately is held here too, so that a store that fails for a moment does not change
what a conversation looks like."""

AGAIN_AFTER_S = 1.0
"""A store that has failed is left alone for so long."""

_FORMAT = b"fewer-history-1"
_log = logging.getLogger("fewer.history")


class Records:
    """One for a process; it outlasts every configuration. Closes `store`.

    ttl_s:      how long a record is kept
    deadline_s: all that a request asks for must be here by then; else it goes on without
    """

    def __init__(
        self, store: CacheStore, metrics: Metrics, *, ttl_s: float, deadline_s: float
    ) -> None:
        self._store = store
        self._near = MemoryCacheStore(NEAR_BYTES)
        self._metrics = metrics
        self._ttl_s = ttl_s
        self._deadline_s = deadline_s
        self._failing = False
        self._again_s = 0.0

    @classmethod
    def in_memory(cls, metrics: Metrics) -> Records:
        settings = RecordsConfig()
        store = MemoryCacheStore(NEAR_BYTES)
        return cls(store, metrics, ttl_s=settings.ttl_s, deadline_s=settings.deadline_ms / 1000)

    @classmethod
    def of(cls, config: Config, metrics: Metrics) -> Records:
        """In the store that the configuration asks for, which is opened at its first use."""
        settings = config.records
        deadline_s = settings.deadline_ms / 1000
        store = open_cache(
            settings.store.reveal(),
            beside(config.store, "history"),
            b"fewer:record:",
            max_bytes=settings.max_mb * 1024 * 1024,
            deadline_s=deadline_s,
        )
        return cls(store, metrics, ttl_s=settings.ttl_s, deadline_s=deadline_s)

    def __repr__(self) -> str:
        return f"<Records {'away' if self._failing else 'in use'}, {self._store!r}>"

    async def known(self, keys: Sequence[bytes], salt: str, route: str) -> dict[bytes, bytes]:
        """What was kept under the first of these keys. Never fails: less is known, then."""
        found: dict[bytes, bytes] = {}
        try:
            async with asyncio.timeout(self._deadline_s):
                for key in keys:
                    if (data := await self._get(_place(key, salt, route))) is not None:
                        found[key] = data
                    if len(found) == ENOUGH:
                        break
        except TimeoutError:
            self._fail("It does not answer in time.")
        return found

    async def keep(self, key: bytes, salt: str, route: str, data: bytes) -> None:
        """Never fails: a record that could not be kept is asked for again."""
        place = _place(key, salt, route)
        await self._near.put(place, data, min(NEAR_S, self._ttl_s))
        if self._is_resting:
            return
        try:
            await self._store.put(place, data, self._ttl_s)
        except ServiceError as error:
            self._fail(error.message)
        else:
            self._recover()

    async def aclose(self) -> None:
        await self._near.aclose()
        await self._store.aclose()

    async def _get(self, place: bytes) -> bytes | None:
        data = await self._near.get(place)
        if data is not None or self._is_resting:
            return data
        try:
            data = await self._store.get(place)
        except ServiceError as error:
            self._fail(error.message)
            return None
        self._recover()
        if data is not None:
            await self._near.put(place, data, min(NEAR_S, self._ttl_s))
        return data

    @property
    def _is_resting(self) -> bool:
        return self._failing and time.monotonic() < self._again_s

    def _fail(self, reason: str) -> None:
        self._metrics.record_store_errors.inc()
        self._again_s = time.monotonic() + AGAIN_AFTER_S
        if not self._failing:
            self._failing = True
            _log.error("records of conversations are not kept; requests are served. %s", reason)

    def _recover(self) -> None:
        if self._failing:
            self._failing = False
            _log.warning("records of conversations are kept again")


def _place(key: bytes, salt: str, route: str) -> bytes:
    """Under which the store has it."""
    secret = hashlib.blake2b(salt.encode()).digest()
    return hashlib.blake2b(
        route.encode() + b"\n" + key, digest_size=KEY_BYTES, key=secret, person=_FORMAT
    ).digest()
