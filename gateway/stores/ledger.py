"""The ledger's SQLite file: requests, the conversations of holdouts, and what looks at them found.

A file of its own beside the one of keys: whoever holds that one open hears of every write to it,
and a ledger that fills its disk must not lock anybody out. Every method is short, blocks, and may
be called from any thread, by one at a time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from gateway.ledger.entry import Entry, Ruling
from gateway.ledger.feedback import Feedback
from gateway.stores.database import connect, connect_in_memory, store_errors, transaction
from gateway.stores.ledger_schema import MEASURED, MIGRATIONS, ORIGINS, REQUEST, RULING
from policies.holdout import Arm

MOST_LABELS = 100
"""Labels of feedback that are told, the commonest."""


class Experiment(msgspec.Struct, frozen=True, order=True):
    """A policy with certain settings on a route."""

    route: str
    policy: str
    epoch: str


class Look(msgspec.Struct, frozen=True):
    """One look at an experiment.

    number:           1, 2, ...
    control, treated: conversations that each arm had
    found:            what was found, as JSON
    """

    experiment: Experiment
    number: int
    time_s: float
    control: int
    treated: int
    found: bytes


class LedgerStore:
    """Opened at first use; several processes may hold it open.

    Every method raises `Unavailable` with the reason when the file cannot be used, and then has
    done nothing.
    path: None keeps everything in memory
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path or Path(":memory:")
        self._in_memory = path is None
        self._connection: sqlite3.Connection | None = None

    def __repr__(self) -> str:
        return f"<LedgerStore {self.path}>"

    @property
    def exists(self) -> bool:
        """Was anything ever kept?"""
        return self._connection is not None or (not self._in_memory and self.path.exists())

    def catch_up(self) -> None:
        """Take in what others have written, where that is not in the file already."""
        return

    def write(self, entries: Iterable[Entry]) -> None:
        """All of them or none."""
        with store_errors(self.path), transaction(connection := self._open()):
            for entry in entries:
                put_entry(connection, entry)

    def add_feedback(self, feedback: Feedback) -> bool:
        """Keep it, in place of what was said of the same answer before. It counts for the arms that
        the request was in. False when the tenant has no such request."""
        with store_errors(self.path), transaction(connection := self._open()):
            return put_feedback(connection, feedback)

    def arms(self) -> dict[Experiment, dict[Arm, int]]:
        """How many conversations each arm of each experiment has."""
        counts: dict[Experiment, dict[Arm, int]] = {}
        for *experiment, arm, count in self._all(
            "SELECT route, policy, epoch, arm, COUNT(*) FROM conversations GROUP BY 1, 2, 3, 4"
        ):
            counts.setdefault(Experiment(*experiment), {})[arm] = count
        return counts

    def conversations(self, experiment: Experiment, arm: Arm) -> list[tuple[float, ...]]:
        """MEASURED of each conversation."""
        return self._all(
            f"SELECT {', '.join(MEASURED)} FROM conversations "
            "WHERE route = ? AND policy = ? AND epoch = ? AND arm = ?",
            (*msgspec.structs.astuple(experiment), arm),
        )

    def answers(
        self, experiment: Experiment, arm: Arm, until_s: float, most: int
    ) -> list[tuple[int, bool, str | None]]:
        """Completion tokens, cut and error of the latest requests of one choice until then whose
        answer was made for them."""
        return self._all(
            "SELECT completion_tokens, cut, error FROM rulings JOIN requests "
            "ON requests.id = request WHERE requests.route = ? AND policy = ? AND epoch = ? "
            "AND arm = ? AND time_s <= ? AND choices = 1 AND completion_tokens > 0 "
            "ORDER BY requests.id DESC LIMIT ?",
            (*msgspec.structs.astuple(experiment), arm, until_s, most),
        )

    def looks(self) -> dict[Experiment, Look]:
        """The latest of each experiment."""
        rows = self._all(
            "SELECT route, policy, epoch, number, time_s, control, treated, found "
            "FROM looks ORDER BY number"
        )
        return {Experiment(*row[:3]): Look(Experiment(*row[:3]), *row[3:]) for row in rows}

    def add_look(self, look: Look) -> bool:
        """Keep it. False when another process has looked already: then that one counts."""
        with store_errors(self.path):
            return put_look(self._open(), look)

    def prune(self, before_s: float, max_rows: int) -> None:
        """Forget what is older, and the oldest of more than `max_rows`."""
        with store_errors(self.path), transaction(connection := self._open()):
            connection.execute("DELETE FROM requests WHERE time_s < ?", (before_s,))
            connection.execute(
                "DELETE FROM requests WHERE id <= (SELECT MAX(id) FROM requests) - ?", (max_rows,)
            )
            connection.execute("DELETE FROM conversations WHERE last_s < ?", (before_s,))
            connection.execute("DELETE FROM looks WHERE time_s < ?", (before_s,))
            connection.execute(
                "DELETE FROM conversations WHERE last_s <= (SELECT last_s FROM conversations "
                "ORDER BY last_s DESC LIMIT 1 OFFSET ?)",
                (max_rows,),
            )

    def totals(self, by: tuple[str, ...], since_s: float) -> list[dict[str, Any]]:
        """Requests since then, summed up by columns of theirs."""
        names = ", ".join(by)
        return self._records(
            f"SELECT {names}, {_TOTALS} FROM requests "
            "LEFT JOIN feedback ON feedback.request = requests.id WHERE time_s >= ? "
            f"GROUP BY {names} ORDER BY {names}",
            (since_s,),
        )

    def rulings(self, since_s: float) -> list[dict[str, Any]]:
        """What policies decided since then, by route, policy, mode, arm and action."""
        return self._records(
            "SELECT route, policy, mode, arm, action, COUNT(*) AS requests, "
            "SUM(asked_tokens) AS asked_tokens, SUM(allowed_tokens) AS allowed_tokens, "
            "SUM(cut_tokens) AS cut_tokens FROM rulings JOIN requests ON requests.id = request "
            "WHERE time_s >= ? GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5",
            (since_s,),
        )

    def request(self, call_id: str, request_id: str) -> dict[str, Any] | None:
        """All that is known of one request, by either of its ids. Ours goes before what a client
        calls another one; of several, the latest."""
        names = ", ".join(REQUEST)
        found = self._records(
            f"SELECT id, {names}, score, label FROM requests LEFT JOIN feedback ON request = id "
            "WHERE call_id = ?1 OR request_id = ?2 ORDER BY call_id = ?1 DESC, id DESC LIMIT 1",
            (call_id, request_id),
        )
        if not found:
            return None
        id = found[0].pop("id")
        rulings = f"SELECT {', '.join(RULING[1:])} FROM rulings WHERE request = ? ORDER BY rowid"
        return found[0] | {"policies": self._records(rulings, (id,))}

    def labels(self, since_s: float) -> list[dict[str, Any]]:
        """The feedback on requests since then, by route and label, the commonest first."""
        return self._records(
            "SELECT route, label, COUNT(*) AS ratings, AVG(score) AS mean_score "
            "FROM feedback JOIN requests ON requests.id = feedback.request WHERE time_s >= ? "
            "GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT ?",
            (since_s, MOST_LABELS),
        )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = (
                connect_in_memory(MIGRATIONS) if self._in_memory else connect(self.path, MIGRATIONS)
            )
        return self._connection

    def _all(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with store_errors(self.path):
            return self._open().execute(query, values).fetchall()

    def _records(self, query: str, values: tuple[Any, ...]) -> list[dict[str, Any]]:
        with store_errors(self.path):
            cursor = self._open().execute(query, values)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]


def put_entry(connection: sqlite3.Connection, entry: Entry) -> None:
    done = connection.execute(_insert("requests", REQUEST), _request_row(entry))
    if not entry.asked_by:
        rows = [(done.lastrowid, *_ruling_row(each)) for each in entry.rulings]
        connection.executemany(_insert("rulings", RULING), rows)
    for ruling in entry.rulings:
        if ruling.arm is not None:
            connection.execute(_ADD_TO_CONVERSATION, _conversation_row(entry, ruling))


def find_request(connection: sqlite3.Connection, feedback: Feedback) -> tuple[int, str] | None:
    """The request that is meant, and its conversation."""
    found: tuple[int, str] | None = connection.execute(
        _FIND_REQUEST, (feedback.tenant, feedback.call_id, feedback.request_id)
    ).fetchone()
    return found


def put_feedback(connection: sqlite3.Connection, feedback: Feedback) -> bool:
    """False when there is no such request."""
    found = find_request(connection, feedback)
    if found is None:
        return False
    request, conversation = found
    before = connection.execute(
        "SELECT (score + 1) / 2.0 FROM feedback WHERE request = ?", (request,)
    ).fetchone()
    connection.execute(
        "INSERT OR REPLACE INTO feedback VALUES (?, ?, ?, ?)",
        (request, feedback.given_s, feedback.score, feedback.label),
    )
    more = feedback.approval - (before[0] if before else 0.0)
    connection.execute(
        _ADD_APPROVAL, (more, 0 if before else 1, f"{feedback.tenant}:{conversation}", request)
    )
    return True


def put_look(connection: sqlite3.Connection, look: Look) -> bool:
    """False when there is one of that number."""
    values = (*msgspec.structs.astuple(look.experiment), *msgspec.structs.astuple(look)[1:])
    done = connection.execute(
        "INSERT INTO looks VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", values
    )
    return done.rowcount == 1


_SUMMED = (
    "estimated", "prompt_tokens", "completion_tokens", "cached_tokens", "reused_tokens",
    "accepted_tokens", "rejected_tokens", *(f"{origin}_tokens" for origin in ORIGINS), "dollars",
)  # fmt: skip
_SUMMED_OF_CLIENTS = ("failed", "cut", "unparsed", "repeated", "seconds")
_AVERAGED_OF_CLIENTS = ("first_token_s", "per_token_s", "queue_ms")
_OF_CLIENTS = "FILTER (WHERE asked_by = '')"
_TOTALS = ", ".join(
    [
        f"COUNT(*) {_OF_CLIENTS} AS requests",
        "COUNT(*) FILTER (WHERE asked_by != '') AS children",
        *(f"SUM({name}) AS {name}" for name in _SUMMED),
        *(f"COALESCE(SUM({n}) {_OF_CLIENTS}, 0) AS {n}" for n in _SUMMED_OF_CLIENTS),
        *(f"AVG({name}) {_OF_CLIENTS} AS mean_{name}" for name in _AVERAGED_OF_CLIENTS),
        "COUNT(score) AS ratings",
        "AVG(score) AS mean_score",
    ]
)

_FIND_REQUEST = (
    "SELECT id, conversation FROM requests WHERE tenant = ?1 AND (call_id = ?2 OR request_id = ?3) "
    "ORDER BY call_id = ?2 DESC, id DESC LIMIT 1"
)
_ADD_APPROVAL = (
    "UPDATE conversations SET approval = approval + ?, rated = rated + ? WHERE conversation = ? "
    "AND (route, policy, epoch, arm) IN (SELECT route, policy, epoch, arm FROM rulings "
    "JOIN requests ON requests.id = request WHERE request = ? AND arm IS NOT NULL)"
)


_SPENT = ("prompt_tokens", "completion_tokens", "dollars")


def _insert(table: str, columns: tuple[str, ...]) -> str:
    places = ", ".join("?" * len(columns))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})"


_ADD_TO_CONVERSATION = (
    _insert(
        "conversations",
        ("route", "policy", "epoch", "arm", "conversation", "last_s", *MEASURED),
    )
    + " ON CONFLICT DO UPDATE SET last_s = MAX(last_s, excluded.last_s), "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in MEASURED)
)


def _request_row(entry: Entry) -> tuple[Any, ...]:
    own = msgspec.structs.asdict(entry) | {"failed": entry.failed}
    own |= {f"{name}_tokens": getattr(entry.origins, name) for name in ORIGINS}
    return tuple(own[name] for name in REQUEST)


def _ruling_row(ruling: Ruling) -> tuple[Any, ...]:
    return tuple(getattr(ruling, name) for name in RULING[1:])


def _conversation_row(entry: Entry, ruling: Ruling) -> tuple[Any, ...]:
    """Two tenants' conversations of one name are two."""
    measured: dict[str, float] = {
        "requests": 1,
        "prompt_tokens": entry.prompt_tokens,
        "completion_tokens": entry.completion_tokens,
        "seconds": entry.seconds,
        "dollars": entry.dollars or 0.0,
        "cut": entry.cut,
        "failed": entry.failed,
        "unparsed": entry.unparsed,
        "repeated": entry.repeated,
        "approval": 0.0,
        "rated": 0,
    }
    if entry.asked_by:
        # Nobody has waited for it, and nobody asked.
        measured |= {name: 0 for name in measured if name not in _SPENT}
    return (
        entry.route,
        ruling.policy,
        ruling.epoch,
        ruling.arm,
        f"{entry.tenant}:{entry.conversation}",
        entry.time_s,
        *(measured[name] for name in MEASURED),
    )
