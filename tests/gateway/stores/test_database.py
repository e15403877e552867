"""The SQLite file itself: permissions, schema, and what happens when it cannot be used."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

import pytest

from engine.protocol.errors import Unavailable
from gateway.stores.database import MIGRATIONS, connect, store_errors, transaction, unhurried


def version_of(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def test_only_the_user_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "state" / "fewer" / "fewer.sqlite3"
    connection = connect(path)
    with transaction(connection):
        connection.execute("INSERT INTO tenants (name, salt, created_s) VALUES ('a', 'salt', 0)")
    files = list(path.parent.iterdir())
    assert len(files) == 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    connection.close()


def test_loose_permissions_are_tightened(tmp_path: Path) -> None:
    path = tmp_path / "fewer.sqlite3"
    path.touch(0o644)
    connect(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_schema_is_made_once(tmp_path: Path) -> None:
    first, second = connect(tmp_path / "db"), connect(tmp_path / "db")
    assert version_of(first) == version_of(second) == len(MIGRATIONS)
    first.close()
    second.close()


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    connection = connect(tmp_path / "db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(Unavailable, match="has schema 99, newer than"):
        connect(tmp_path / "db")


@pytest.mark.parametrize("kind", ["garbage", "folder", "below a file"])
def test_what_is_no_database_is_refused_with_the_reason(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "db"
    if kind == "garbage":
        path.write_bytes(b"not a database at all" * 100)
    elif kind == "folder":
        path.mkdir()
    else:
        path.touch()
        path /= "db"
    with pytest.raises(Unavailable, match="cannot be used: ") as refused:
        connect(path)
    assert refused.value.retry_after_s is not None


def test_a_transaction_is_all_or_nothing(tmp_path: Path) -> None:
    connection = connect(tmp_path / "db")
    insert = "INSERT INTO tenants (name, salt, created_s) VALUES (?, 'salt', 0)"
    connection.execute(insert, ("taken",))
    with pytest.raises(sqlite3.IntegrityError), transaction(connection):
        connection.executemany(insert, [("a",), ("taken",)])
    with transaction(connection):
        connection.execute(insert, ("b",))
    assert connection.execute("SELECT name FROM tenants").fetchall() == [("b",), ("taken",)]
    connection.close()


def test_an_unhurried_write_gives_way_but_hides_no_other_fault(tmp_path: Path) -> None:
    writer, other = connect(tmp_path / "db"), connect(tmp_path / "db")
    insert = "INSERT INTO tenants (name, salt, created_s) VALUES ('a', 'salt', 0)"
    with transaction(writer), unhurried(other):
        other.execute(insert)
    assert writer.execute("SELECT 1 FROM tenants").fetchone() is None
    with pytest.raises(Unavailable), store_errors(tmp_path / "db"), unhurried(other):
        other.execute("INSERT INTO nothing VALUES (1)")
    writer.close()
    other.close()


def test_keys_of_an_older_version_are_no_admins_and_have_no_limits(tmp_path: Path) -> None:
    old = connect(tmp_path / "db", MIGRATIONS[:1])
    with transaction(old):
        old.execute("INSERT INTO tenants (name, salt, created_s) VALUES ('a', 'salt', 0)")
        old.execute("INSERT INTO keys VALUES ('k', 'a', x'00', NULL, 1, 0, NULL, NULL, NULL)")
    old.close()
    new = connect(tmp_path / "db")
    assert new.execute("SELECT id, admin, limits FROM keys").fetchall() == [("k", 0, None)]
    assert new.execute("SELECT name, limits FROM tenants").fetchall() == [("a", None)]
    new.close()
