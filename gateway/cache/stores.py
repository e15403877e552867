"""The cache that a configuration asks for."""

from __future__ import annotations

from gateway.cache.answers import Answers
from gateway.cache.sharing import Sharing
from gateway.config import Config
from gateway.stores.database import beside
from gateway.stores.opening import open_cache
from gateway.telemetry.metrics import Metrics


def sharing_of(config: Config, metrics: Metrics) -> Sharing:
    """Over the store of `config.cache`, which is opened at its first use."""
    cache = config.cache
    store = open_cache(
        cache.store.reveal(),
        beside(config.store, "cache"),
        b"fewer:answer:",
        max_bytes=cache.max_mb * 1024 * 1024,
        deadline_s=cache.deadline_ms / 1000,
    )
    return Sharing(Answers(store, metrics, cache.max_answer_kb * 1024), metrics)
