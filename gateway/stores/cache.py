"""The contract of every store of kept answers: bytes by key, for a while, as far as there is room.

Three keep it: `memory` (this process), `sqlite` (the workers of this machine) and `redis` (all
gateways that share one). One test suite holds them to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

KEY_BYTES = 32


class CacheStore(ABC):
    """May forget anything at any time; never gives one key's value for another.

    Each method ends within the store's deadline, and raises `Unavailable` or `DeadlineExceeded`
    when it could not do what it was asked. Cancelling one leaves nothing half done: what it had
    begun is finished or undone, and no later call sees anything of it.
    """

    @abstractmethod
    async def get(self, key: bytes) -> bytes | None:
        """The latest value that was put under `key`, unless it was forgotten or has expired."""

    @abstractmethod
    async def put(self, key: bytes, value: bytes, ttl_s: float) -> None:
        """Keep `value` for at most `ttl_s`, in the place of an older one."""

    @property
    def size_bytes(self) -> int | None:
        """How much of its room is taken; None where another process knows."""
        return None

    @abstractmethod
    async def aclose(self) -> None:
        """Safe to call twice, and without any use before."""
