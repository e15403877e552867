"""Which store a configuration gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cache.stores import sharing_of
from gateway.config import CacheConfig, Config, Secret
from gateway.telemetry.metrics import Metrics


@pytest.mark.parametrize(
    ("store", "kind"),
    [
        ("memory", "MemoryCacheStore 0 answers, 0 of 2097152 bytes"),
        ("sqlite", "SqliteCacheStore fewer.cache.sqlite3, 0 bytes"),
        ("redis://:password@127.0.0.1:1/0", "RedisCacheStore <RedisClient 0 running>"),
    ],
)
async def test_each_kind(store: str, kind: str, tmp_path: Path) -> None:
    cache = CacheConfig(store=Secret(store), max_mb=2)
    config = Config(store=tmp_path / "fewer.sqlite3", cache=cache)
    sharing = sharing_of(config, Metrics())
    assert repr(sharing) == (
        f"<Sharing <Flights 0 flying, 0 to be joined>, <Answers in use, <{kind}>>>"
    )
    assert "password" not in repr(config)
    await sharing.aclose()
