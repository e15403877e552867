"""Budgets in an SQLite file of their own, shared by the workers of one machine.

The file is not the one of keys: whoever holds that one open hears of every write to it. A
reservation is one transaction that has the write lock from its beginning.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from gateway.stores.budget import (
    GRACE_S,
    NEVER_S,
    SLOT_COUNTS_S,
    BudgetStore,
    Reply,
    State,
    Take,
    counts,
    state_of_period,
    state_of_window,
    taken,
)
from gateway.stores.database import connect, store_errors, transaction
from gateway.stores.store_thread import StoreThread

MIGRATIONS = (
    """
    CREATE TABLE slots (
        counter TEXT NOT NULL,
        second INTEGER NOT NULL,
        amount INTEGER NOT NULL,
        PRIMARY KEY (counter, second)
    ) WITHOUT ROWID;
    CREATE INDEX slots_by_second ON slots (second);
    CREATE TABLE periods (
        counter TEXT PRIMARY KEY,
        spent INTEGER NOT NULL,
        held INTEGER NOT NULL,
        forget_s REAL
    ) WITHOUT ROWID;
    CREATE INDEX periods_by_end ON periods (forget_s);
    CREATE TABLE leases (
        lease TEXT NOT NULL,
        counter TEXT NOT NULL,
        windowed INTEGER NOT NULL,
        amount INTEGER NOT NULL,
        second INTEGER NOT NULL,
        ends_s REAL NOT NULL,
        PRIMARY KEY (lease, counter)
    ) WITHOUT ROWID;
    CREATE INDEX leases_by_end ON leases (ends_s);
    """,
)


class SqliteBudgetStore(BudgetStore):
    """Opened at once, on its thread, as making a new file takes longer than a command may. What
    that fails of is told to whoever uses the store.

    clock: Unix time in seconds, which the processes that share the file agree about
    """

    def __init__(
        self, path: Path, *, deadline_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._deadline_s = deadline_s
        self._clock = clock
        self._connection: sqlite3.Connection | None = None
        self._thread = StoreThread(path.name, deadline_s)
        self._thread.submit(self._open)

    def __repr__(self) -> str:
        return f"<SqliteBudgetStore {self._path.name}>"

    async def reserve(self, lease: str, takes: Sequence[Take], lease_s: float) -> Reply:
        return await self._thread.run(partial(self._reserve, lease, takes, lease_s))

    async def settle(self, lease: str, takes: Sequence[Take]) -> None:
        await self._thread.run(partial(self._settle, lease, takes))

    async def look(self, takes: Sequence[Take]) -> tuple[State, ...]:
        return await self._thread.run(partial(self._look, takes))

    async def aclose(self) -> None:
        self._thread.close(self._close)

    def _reserve(self, lease: str, takes: Sequence[Take], lease_s: float) -> Reply:
        with store_errors(self._path), transaction(connection := self._open()):
            now_s = self._clock()
            self._tidy(connection, now_s)
            states = tuple(_state(connection, take, now_s) for take in takes)
            if any(state.wait_s for state in states):
                return Reply(False, states)
            ends_s = now_s + lease_s
            for take in takes:
                _take(connection, take, now_s)
                connection.execute(
                    "INSERT INTO leases VALUES (?, ?, ?, ?, ?, ?)",
                    (lease, take.counter, take.windowed, take.amount, int(now_s), ends_s),
                )
        return Reply(True, tuple(map(taken, states, takes, [now_s] * len(takes))))

    def _settle(self, lease: str, takes: Sequence[Take]) -> None:
        spent = {take.counter: take.amount for take in takes}
        with store_errors(self._path), transaction(connection := self._open()):
            now_s = self._clock()
            self._tidy(connection, now_s)
            rows = connection.execute(
                "DELETE FROM leases WHERE lease = ? RETURNING counter, windowed, amount, second",
                (lease,),
            ).fetchall()
            for counter, windowed, held, second in rows:
                if not windowed:
                    _exchange(connection, counter, held, spent.get(counter, 0))
                elif counts(second, now_s):
                    _add(connection, counter, second, spent.get(counter, held) - held)

    def _look(self, takes: Sequence[Take]) -> tuple[State, ...]:
        with store_errors(self._path), transaction(connection := self._open()):
            now_s = self._clock()
            self._tidy(connection, now_s)
            return tuple(_state(connection, take, now_s) for take in takes)

    def _tidy(self, connection: sqlite3.Connection, now_s: float) -> None:
        """End the leases that are over, and forget what counts no more."""
        ended = connection.execute(
            "DELETE FROM leases WHERE ends_s <= ? RETURNING counter, windowed, amount", (now_s,)
        ).fetchall()
        for counter, windowed, held in ended:
            if not windowed:
                _exchange(connection, counter, held, 0)
        connection.execute(
            "DELETE FROM slots WHERE second <= ? OR second >= ?",
            (now_s - SLOT_COUNTS_S, now_s + SLOT_COUNTS_S),
        )
        connection.execute("DELETE FROM periods WHERE forget_s <= ?", (now_s,))

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = connect(self._path, MIGRATIONS)
            # The machine's fall may take away what was spent in its last moments.
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute(f"PRAGMA busy_timeout = {int(self._deadline_s * 1000)}")
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _state(connection: sqlite3.Connection, take: Take, now_s: float) -> State:
    if take.windowed:
        slots = connection.execute(
            "SELECT second, amount FROM slots WHERE counter = ? ORDER BY second", (take.counter,)
        ).fetchall()
        return state_of_window(slots, take, now_s)
    row = connection.execute(
        "SELECT spent + held FROM periods WHERE counter = ?", (take.counter,)
    ).fetchone()
    return state_of_period(0 if row is None else row[0], take)


def _take(connection: sqlite3.Connection, take: Take, now_s: float) -> None:
    if not take.windowed:
        forget_s = None if take.until_s == NEVER_S else take.until_s + GRACE_S
        connection.execute(
            "INSERT INTO periods VALUES (?, 0, ?, ?) "
            "ON CONFLICT DO UPDATE SET held = held + excluded.held",
            (take.counter, take.amount, forget_s),
        )
    elif take.amount:
        _add(connection, take.counter, int(now_s), take.amount)


def _add(connection: sqlite3.Connection, counter: str, second: int, amount: int) -> None:
    connection.execute(
        "INSERT INTO slots VALUES (?, ?, ?) "
        "ON CONFLICT DO UPDATE SET amount = amount + excluded.amount",
        (counter, second, amount),
    )
    if amount <= 0:
        connection.execute(
            "DELETE FROM slots WHERE counter = ? AND second = ? AND amount <= 0", (counter, second)
        )


def _exchange(connection: sqlite3.Connection, counter: str, held: int, spent: int) -> None:
    connection.execute(
        "UPDATE periods SET held = held - ?, spent = spent + ? WHERE counter = ?",
        (held, spent, counter),
    )
