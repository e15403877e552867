"""Kept answers in Redis, for all gateways that share one.

Room is Redis's own affair (`maxmemory`, with a policy that evicts); we only say how long.
"""

from __future__ import annotations

from gateway.stores.cache import CacheStore
from gateway.stores.redis import RedisClient


class RedisCacheStore(CacheStore):
    """Closes `client`. prefix: of its keys, told from those of other things"""

    def __init__(self, client: RedisClient, prefix: bytes) -> None:
        self._client = client
        self._prefix = prefix

    def __repr__(self) -> str:
        return f"<RedisCacheStore {self._client!r}>"

    async def get(self, key: bytes) -> bytes | None:
        value: bytes | None = await self._client.run(
            lambda: self._client.commands.get(self._prefix + key)
        )
        return value

    async def put(self, key: bytes, value: bytes, ttl_s: float) -> None:
        ttl_ms = max(1, int(ttl_s * 1000))
        await self._client.run(
            lambda: self._client.commands.set(self._prefix + key, value, px=ttl_ms)
        )

    async def aclose(self) -> None:
        await self._client.aclose()
