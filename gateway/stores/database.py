"""Opening the SQLite file that holds what must last, and bringing its schema up to date.

Several processes share the file: write-ahead logging lets them read while one writes.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from engine.protocol.errors import Unavailable

BUSY_TIMEOUT_MS = 2000

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE tenants (
        name TEXT PRIMARY KEY,
        salt TEXT NOT NULL,
        created_s REAL NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE keys (
        id TEXT PRIMARY KEY,
        tenant TEXT NOT NULL REFERENCES tenants (name),
        secret_sha256 BLOB NOT NULL,
        routes TEXT,
        weight REAL NOT NULL,
        created_s REAL NOT NULL,
        expires_s REAL,
        revoked_s REAL,
        last_used_s REAL
    ) WITHOUT ROWID;
    """,
    "ALTER TABLE keys ADD COLUMN admin INTEGER NOT NULL DEFAULT 0",
    """
    ALTER TABLE keys ADD COLUMN limits TEXT;
    ALTER TABLE tenants ADD COLUMN limits TEXT;
    """,
)
"""Of the file of keys. The script at place i makes version i + 1 of the schema. Never edit one that
was released."""


def beside(store: Path, name: str) -> Path:
    """A further file of the same folder, given the one of what must last: `fewer.NAME.sqlite3`."""
    return store.with_name(f"{store.stem}.{name}{store.suffix}")


def connect(path: Path, migrations: Sequence[str] = MIGRATIONS) -> sqlite3.Connection:
    """Open the file, making it and its folder when missing, with the newest schema.

    Only the user may read it (0600). Raises `Unavailable` when it cannot be opened, is no
    database, or was written by a newer version. The connection commits each statement; group
    several with `transaction`. It may be used from any thread, by one at a time.
    """
    with store_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # SQLite gives its side files (-wal, -shm) the permissions of the main one.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        os.chmod(path, 0o600)
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA foreign_keys = ON")
            _migrate(connection, path, migrations)
        except BaseException:
            connection.close()
            raise
        return connection


def connect_in_memory(migrations: Sequence[str] = MIGRATIONS) -> sqlite3.Connection:
    """As `connect`, but for this process alone, and lost with it."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA foreign_keys = ON")
    _migrate(connection, Path(":memory:"), migrations)
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit what is done inside, all or nothing. Takes the write lock at once."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextmanager
def unhurried(connection: sqlite3.Connection) -> Iterator[None]:
    """A write inside gives way: it is left out when another process is writing, or when nothing can
    be written, as on a full disk."""
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:  # the statement's own fault
            raise
    finally:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")


@contextmanager
def store_errors(path: Path) -> Iterator[None]:
    """Raise what SQLite and the file system say as `Unavailable`, with the reason."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise Unavailable(
            f"The store {path.name} cannot be used: {reason}.", retry_after_s=5.0
        ) from error


def _migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[str]) -> None:
    if _version(connection) == len(migrations):
        return
    with transaction(connection):
        # Read again under the lock: another process may just have done it.
        version = _version(connection)
        if version > len(migrations):
            raise Unavailable(
                f"The store {path.name} has schema {version}, newer than the "
                f"{len(migrations)} of this version. Update Fewer."
            )
        for script in migrations[version:]:
            for statement in filter(str.strip, script.split(";")):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(migrations)}")


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version
