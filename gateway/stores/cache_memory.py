"""Kept answers in this process: the least recently used go when there is no more room."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from gateway.stores.cache import CacheStore

ENTRY_BYTES = 300
"""What an entry takes beside its value: objects, a place in two tables, the key."""


class MemoryCacheStore(CacheStore):
    """max_bytes: values and what each takes beside; clock: any seconds that only go forward."""

    def __init__(self, max_bytes: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._size_bytes = 0
        self._entries: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()

    def __repr__(self) -> str:
        return (
            f"<MemoryCacheStore {len(self._entries)} answers, "
            f"{self._size_bytes} of {self._max_bytes} bytes>"
        )

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    async def get(self, key: bytes) -> bytes | None:
        found = self._entries.get(key)
        if found is None:
            return None
        expires_s, value = found
        if expires_s <= self._clock():
            self._forget(key)
            return None
        self._entries.move_to_end(key)
        return value

    async def put(self, key: bytes, value: bytes, ttl_s: float) -> None:
        self._forget(key)
        size_bytes = len(value) + ENTRY_BYTES
        if size_bytes > self._max_bytes:
            return
        while self._size_bytes + size_bytes > self._max_bytes:
            self._forget(next(iter(self._entries)))
        self._entries[key] = self._clock() + ttl_s, value
        self._size_bytes += size_bytes

    async def aclose(self) -> None:
        self._entries.clear()
        self._size_bytes = 0

    def _forget(self, key: bytes) -> None:
        _, value = self._entries.pop(key, (0.0, None))
        if value is not None:
            self._size_bytes -= len(value) + ENTRY_BYTES
