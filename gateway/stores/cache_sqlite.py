"""Kept answers in an SQLite file of their own, shared by the workers of one machine.

The file is not the one of keys: whoever holds that one open hears of every write to it. All work
is done on one thread; the event loop only waits, and not beyond the deadline.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gateway.stores.cache import CacheStore
from gateway.stores.database import connect, store_errors, transaction
from gateway.stores.store_thread import StoreThread

MIGRATIONS = (
    """
    CREATE TABLE answers (
        key BLOB PRIMARY KEY,
        value BLOB NOT NULL,
        bytes INTEGER NOT NULL,
        put_s REAL NOT NULL,
        expires_s REAL NOT NULL
    );
    CREATE INDEX answers_by_age ON answers (put_s, bytes);
    CREATE INDEX answers_by_expiry ON answers (expires_s);
    """,
)
ROW_BYTES = 128


class SqliteCacheStore(CacheStore):
    """Opened at once, on its thread, as making a new file takes longer than a command may. What
    that fails of is told to whoever uses the store.

    When it is full, the answers that were put first go first: noting each use would make a write
    of every read.

    clock: Unix time in seconds, which the processes that share the file agree about
    """

    def __init__(
        self,
        path: Path,
        max_bytes: int,
        *,
        deadline_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._deadline_s = deadline_s
        self._clock = clock
        self._size_bytes = 0
        self._connection: sqlite3.Connection | None = None
        self._thread = StoreThread(path.name, deadline_s)
        self._thread.submit(self._open)

    def __repr__(self) -> str:
        return f"<SqliteCacheStore {self._path.name}, {self._size_bytes} bytes>"

    @property
    def size_bytes(self) -> int:
        """As of the latest write of this process."""
        return self._size_bytes

    async def get(self, key: bytes) -> bytes | None:
        return await self._thread.run(partial(self._get, key))

    async def put(self, key: bytes, value: bytes, ttl_s: float) -> None:
        if len(value) + ROW_BYTES <= self._max_bytes:
            await self._thread.run(partial(self._put, key, value, ttl_s))

    async def aclose(self) -> None:
        self._thread.close(self._close)

    def _get(self, key: bytes) -> bytes | None:
        with store_errors(self._path):
            row = (
                self._open()
                .execute(
                    "SELECT value FROM answers WHERE key = ? AND expires_s > ?",
                    (key, self._clock()),
                )
                .fetchone()
            )
        return None if row is None else row[0]

    def _put(self, key: bytes, value: bytes, ttl_s: float) -> None:
        now_s = self._clock()
        size_bytes = len(value) + ROW_BYTES
        with store_errors(self._path), transaction(connection := self._open()):
            connection.execute("DELETE FROM answers WHERE expires_s <= ?", (now_s,))
            connection.execute(
                "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?)",
                (key, value, size_bytes, now_s, now_s + ttl_s),
            )
            self._size_bytes = self._make_room(connection)

    def _make_room(self, connection: sqlite3.Connection) -> int:
        """Forget the oldest until all fits; what is taken then."""
        taken: int = connection.execute("SELECT SUM(bytes) FROM answers").fetchone()[0]
        while taken > self._max_bytes:
            rowid, freed = connection.execute(
                "SELECT rowid, bytes FROM answers ORDER BY put_s, rowid LIMIT 1"
            ).fetchone()
            connection.execute("DELETE FROM answers WHERE rowid = ?", (rowid,))
            taken -= freed
        return taken

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = connect(self._path, MIGRATIONS)
            # What the machine's fall takes away is answered again.
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute(f"PRAGMA busy_timeout = {int(self._deadline_s * 1000)}")
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
