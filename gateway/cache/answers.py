"""The cache of answers: a store, what is put into it, and what happens when it fails.

A request is served without the cache when its store cannot be used, and none waits for a store
that has just failed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from engine.protocol.errors import ServiceError
from engine.protocol.frames import Event
from gateway.cache.kept import Kept, decode, encode
from gateway.stores.cache import CacheStore
from gateway.telemetry.metrics import Metrics

AGAIN_AFTER_S = 1.0
"""A store that has failed is left alone for so long: a paused one costs its deadline each time."""

_log = logging.getLogger("fewer.cache")


class Answers:
    """Closes `store`. Outlasts every configuration.

    max_answer_bytes: longer ones are not kept
    clock:            Unix time in seconds
    """

    def __init__(
        self,
        store: CacheStore,
        metrics: Metrics,
        max_answer_bytes: int,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self.max_answer_bytes = max_answer_bytes
        self._clock = clock
        self._failing = False
        self._again_s = 0.0

    def __repr__(self) -> str:
        return f"<Answers {'away' if self._failing else 'in use'}, {self._store!r}>"

    async def find(self, key: bytes, max_age_s: float) -> Kept | None:
        """The answer kept under `key`, if it is not older. None, too, while the store is away."""
        if self._is_resting:
            return None
        try:
            data = await self._store.get(key)
        except ServiceError as error:
            self._fail(error)
            return None
        self._recover()
        kept = None if data is None else decode(data, key)
        if kept is None or self._clock() - kept.created_s > max_age_s:
            return None
        return kept

    async def keep(self, key: bytes, model: str, events: list[Event], ttl_s: float) -> bool:
        """Keep an answer. False when it is too long, or while the store is away."""
        if self._is_resting:
            return False
        data = encode(Kept(key, self._clock(), model, events))
        if len(data) > self.max_answer_bytes:
            return False
        try:
            await self._store.put(key, data, ttl_s)
        except ServiceError as error:
            self._fail(error)
            return False
        self._recover()
        if (size_bytes := self._store.size_bytes) is not None:
            self._metrics.cache_bytes.set(size_bytes)
        return True

    async def aclose(self) -> None:
        await self._store.aclose()

    @property
    def _is_resting(self) -> bool:
        return self._failing and time.monotonic() < self._again_s

    def _fail(self, error: ServiceError) -> None:
        self._metrics.cache_errors.inc()
        self._again_s = time.monotonic() + AGAIN_AFTER_S
        if not self._failing:
            self._failing = True
            _log.error("answers are not cached; requests are served all the same. %s", error)

    def _recover(self) -> None:
        if self._failing:
            self._failing = False
            _log.warning("answers are cached again")
