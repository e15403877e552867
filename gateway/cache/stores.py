"""The cache that a configuration asks for."""

from __future__ import annotations

from gateway.cache.answers import Answers
from gateway.cache.sharing import Sharing
from gateway.config import Config
from gateway.stores.cache import CacheStore
from gateway.stores.cache_memory import MemoryCacheStore
from gateway.stores.cache_redis import RedisCacheStore
from gateway.stores.cache_sqlite import SqliteCacheStore
from gateway.stores.database import beside
from gateway.stores.redis import RedisClient
from gateway.telemetry.metrics import Metrics


def sharing_of(config: Config, metrics: Metrics) -> Sharing:
    """Over the store of `config.cache`, which is opened at its first use."""
    answers = Answers(_store(config), metrics, config.cache.max_answer_kb * 1024)
    return Sharing(answers, metrics)


def _store(config: Config) -> CacheStore:
    cache = config.cache
    max_bytes, deadline_s = cache.max_mb * 1024 * 1024, cache.deadline_ms / 1000
    match cache.store.reveal():
        case "memory":
            return MemoryCacheStore(max_bytes)
        case "sqlite":
            path = beside(config.store, "cache")
            return SqliteCacheStore(path, max_bytes, deadline_s=deadline_s)
        case url:
            return RedisCacheStore(RedisClient(url, deadline_s))
