"""Kept answers in SQLite: the loop never waits for the disk, and nobody beyond the deadline."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from functools import partial
from pathlib import Path

import pytest

from engine.protocol.errors import DeadlineExceeded, Overloaded, Unavailable
from gateway.stores.cache_sqlite import SqliteCacheStore
from gateway.stores.database import beside
from gateway.stores.store_thread import MAX_WAITING
from tests.fakes.serving import until

KEY = bytes(32)


async def existing(path: Path) -> None:
    """Making the file takes longer than a short deadline."""
    store = SqliteCacheStore(path, 10_000, deadline_s=5)
    await store.put(KEY, b"old", 60)
    await store.aclose()


def test_it_is_a_file_of_its_own() -> None:
    assert beside(Path("/a/fewer.sqlite3"), "cache") == Path("/a/fewer.cache.sqlite3")


async def test_another_process_finds_what_was_put(tmp_path: Path) -> None:
    one, other = (SqliteCacheStore(tmp_path / "db", 10_000, deadline_s=5) for _ in "12")
    await one.put(KEY, b"value", 60)
    await one.aclose()
    assert await other.get(KEY) == b"value"
    assert repr(one) == "<SqliteCacheStore db, 133 bytes>"
    await other.aclose()


async def test_a_disk_that_hangs_costs_the_deadline_and_no_more(tmp_path: Path) -> None:
    await existing(tmp_path / "db")
    store = SqliteCacheStore(tmp_path / "db", 10_000, deadline_s=0.2)
    hangs, free = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        free.wait(10)

    await store.put(KEY, b"value", 60)
    store._thread.submit(hang)
    await until(hangs.is_set)
    with pytest.raises(DeadlineExceeded, match="db did not answer in time"):
        await store.get(KEY)
    free.set()
    assert await store.get(KEY) == b"value"
    await store.aclose()


async def test_what_waits_is_bounded(tmp_path: Path) -> None:
    store = SqliteCacheStore(tmp_path / "db", 10_000, deadline_s=5)
    free = threading.Event()
    store._thread.submit(partial(free.wait, 10))
    waiting = [asyncio.create_task(store.get(KEY)) for _ in range(MAX_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="too much to do"):
        await store.get(KEY)
    free.set()
    assert await asyncio.gather(*waiting) == [None] * MAX_WAITING
    await store.aclose()


async def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "db").write_bytes(b"nothing that SQLite knows" * 50)
    store = SqliteCacheStore(tmp_path / "db", 10_000, deadline_s=5)
    with pytest.raises(Unavailable, match="The store db cannot be used"):
        await store.put(KEY, b"value", 60)
    await store.aclose()


async def test_a_lock_of_another_process_is_waited_for_within_the_deadline(tmp_path: Path) -> None:
    await existing(tmp_path / "db")
    store = SqliteCacheStore(tmp_path / "db", 10_000, deadline_s=0.2)
    assert await store.get(KEY) == b"old"
    other = sqlite3.connect(tmp_path / "db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises((DeadlineExceeded, Unavailable)):
        await store.put(KEY, b"value", 60)
    other.execute("ROLLBACK")
    other.close()
    await store.aclose()
