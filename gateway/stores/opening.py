"""The store of bytes that a setting names."""

from __future__ import annotations

from pathlib import Path

from gateway.stores.cache import CacheStore
from gateway.stores.cache_memory import MemoryCacheStore
from gateway.stores.cache_redis import RedisCacheStore
from gateway.stores.cache_sqlite import SqliteCacheStore
from gateway.stores.ledger import LedgerStore
from gateway.stores.ledger_shared import SharedLedgerStore
from gateway.stores.redis import RedisClient

LEDGER_DEADLINE_S = 2.0
"""For each command to Redis. Nobody waits for it but who reads the ledger."""


def open_cache(
    store: str, path: Path, prefix: bytes, *, max_bytes: int, deadline_s: float
) -> CacheStore:
    """Opened at its first use.

    store:  `memory`, `sqlite`, or the address of a Redis
    path:   of the SQLite file
    prefix: of the keys in Redis, told from those of other things
    """
    match store:
        case "memory":
            return MemoryCacheStore(max_bytes)
        case "sqlite":
            return SqliteCacheStore(path, max_bytes, deadline_s=deadline_s)
        case url:
            return RedisCacheStore(RedisClient(url, deadline_s), prefix)


def open_ledger(store: str, path: Path) -> LedgerStore:
    """As `open_cache`. With a Redis, what other gateways write there comes into the file, too."""
    match store:
        case "memory":
            return LedgerStore(None)
        case "sqlite":
            return LedgerStore(path)
        case url:
            return SharedLedgerStore(path, url, LEDGER_DEADLINE_S)
