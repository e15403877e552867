"""The store of keys for who changes them while requests run: on a thread, with a connection of its
own, so that a slow disk or another process's lock holds up nobody else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from engine.protocol.errors import NotFound
from gateway.stores.keys import KeyStore
from gateway.stores.store_thread import StoreThread

DEADLINE_S = 5.0
"""SQLite itself waits two seconds for a lock."""

_T = TypeVar("_T")


class KeyDesk:
    """store: the one to open again; None where no keys are kept"""

    def __init__(self, store: KeyStore | None) -> None:
        self._store = None if store is None else KeyStore(store.path, clock=store.clock)
        self._thread = StoreThread("keys", DEADLINE_S)

    @property
    def keeps_any(self) -> bool:
        return self._store is not None

    async def ask(self, work: Callable[[KeyStore], _T]) -> _T:
        """What `work` makes of the store. Raises what it raises, and as `StoreThread.run`."""
        if self._store is None:
            raise NotFound("This server keeps no keys.")
        return await self._thread.run(partial(work, self._store))

    def close(self) -> None:
        if self._store is not None:
            self._thread.close(self._store.close)
