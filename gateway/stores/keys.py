"""Virtual keys in SQLite: made, listed, rotated, revoked, and found again by their public id.

A key reads `fw-<public id>-<secret>`. The secret has 256 random bits and only its SHA-256 is
kept: a slow password hash protects secrets that can be guessed, and this one cannot. A key is
shown once, when it is made or rotated, and is in no repr, log line or error.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from engine.protocol.errors import InvalidRequest, NotFound, Unavailable
from gateway.budgets.limits import Limits
from gateway.stores.database import connect, store_errors, transaction, unhurried

PREFIX = "fw"
ID_BYTES = 6
SECRET_BYTES = 32
MAX_KEY_CHARS = 128
MAX_NAME_CHARS = 128
LATEST_S = 253_370_764_800.0
"""The year 9999: no calendar shows what is later."""

LAST_USED_STEP_S = 300.0
"""`last_used_s` is this coarse, so that using a key hardly ever writes."""

_COLUMNS = (
    "keys.id, keys.tenant, tenants.salt, keys.routes, keys.weight, keys.created_s, "
    "keys.expires_s, keys.revoked_s, keys.last_used_s, keys.admin, keys.limits, tenants.limits"
)
_SELECT = f"SELECT {_COLUMNS}, keys.secret_sha256 FROM keys JOIN tenants ON tenants.name = tenant"


class Key(msgspec.Struct, frozen=True):
    """What is known of a key. Times are Unix seconds.

    id:          public; names the key in lists, logs and commands
    routes:      the routes it may use; None means all
    weight:      its share of the engine under load
    expires_s:   it is refused from then on; None means never
    revoked_s:   when it was revoked, if it was
    last_used_s: to about five minutes; None when never
    admin:       it may read what concerns every tenant, and change keys and limits
    limits:      what it may use; None means no limit of its own
    """

    id: str
    tenant: str
    routes: tuple[str, ...] | None
    weight: float
    created_s: float
    expires_s: float | None
    revoked_s: float | None
    last_used_s: float | None
    admin: bool = False
    limits: Limits | None = None

    def state(self, now_s: float) -> str:
        """`active`, `expired` or `revoked`."""
        if self.revoked_s is not None:
            return "revoked"
        if self.expires_s is not None and now_s >= self.expires_s:
            return "expired"
        return "active"


class NewKey(msgspec.Struct, frozen=True):
    """A key just made or rotated, with the only copy of its text."""

    key: Key
    text: str

    def __repr__(self) -> str:
        return f"NewKey({self.key.id}, '***')"


class StoredKey(msgspec.Struct, frozen=True):
    """A key with what only the gateway may know of it."""

    key: Key
    salt: str
    secret_sha256: bytes
    tenant_limits: Limits | None

    def matches(self, secret: str) -> bool:
        """Is it this key's secret? Takes the same time whichever character differs."""
        return hmac.compare_digest(_digest(secret), self.secret_sha256)

    def __repr__(self) -> str:
        return f"StoredKey({self.key.id}, '***')"


class KeyStore:
    """The keys in one file. Opened at first use; several processes may hold it open.

    Every method raises `Unavailable` with the reason when the file cannot be used.
    clock: Unix time in seconds
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self.clock = clock
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._own_changes = 0
        self._touched_s: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<KeyStore {self.path}>"

    def create(
        self,
        tenant: str,
        *,
        routes: Iterable[str] | None = None,
        weight: float = 1.0,
        expires_s: float | None = None,
        admin: bool = False,
        limits: Limits | None = None,
    ) -> NewKey:
        """A new key. The tenant, and with it its salt, comes into being with its first key.

        Raises `InvalidRequest` for an empty or overlong name, a weight that is not positive, or
        an expiry that has passed.
        """
        now_s = self.clock()
        _check(tenant, weight, expires_s, now_s)
        id, secret = secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES)
        allowed = None if routes is None else msgspec.json.encode(sorted(set(routes))).decode()
        with store_errors(self.path), transaction(connection := self._open()):
            connection.execute(
                "INSERT INTO tenants (name, salt, created_s) VALUES (?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                (tenant, secrets.token_hex(SECRET_BYTES), now_s),
            )
            connection.execute(
                "INSERT INTO keys (id, tenant, secret_sha256, routes, weight, created_s, "
                "expires_s, admin, limits) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    id,
                    tenant,
                    _digest(secret),
                    allowed,
                    weight,
                    now_s,
                    expires_s,
                    admin,
                    _written(limits),
                ),
            )
        self._own_changes += 1
        return NewKey(self._get(id).key, f"{PREFIX}-{id}-{secret}")

    def list(self) -> list[Key]:
        """All keys, revoked and expired ones too, oldest first."""
        with store_errors(self.path):
            rows = self._open().execute(f"{_SELECT} ORDER BY keys.created_s, keys.id").fetchall()
        return [_stored(row).key for row in rows]

    def rotate(self, id: str) -> NewKey:
        """A new secret under the same id; the old one is dead at once.

        Raises `NotFound`, and `InvalidRequest` for a revoked key.
        """
        if self._get(id).key.revoked_s is not None:
            raise InvalidRequest(f"The key {id} is revoked; create a new one.")
        secret = secrets.token_urlsafe(SECRET_BYTES)
        self._change("UPDATE keys SET secret_sha256 = ? WHERE id = ?", (_digest(secret), id))
        return NewKey(self._get(id).key, f"{PREFIX}-{id}-{secret}")

    def revoke(self, id: str) -> Key:
        """Refuse the key from now on, in every process. Revoking twice changes nothing.

        Raises `NotFound`.
        """
        self._get(id)
        self._change(
            "UPDATE keys SET revoked_s = ? WHERE id = ? AND revoked_s IS NULL", (self.clock(), id)
        )
        return self._get(id).key

    def expire(self, id: str, expires_s: float | None) -> Key:
        """Refuse the key from then on; None means never. Raises `NotFound`, and `InvalidRequest`
        for an expiry that has passed."""
        _check_expiry(expires_s, self.clock())
        self._get(id)
        self._change("UPDATE keys SET expires_s = ? WHERE id = ?", (expires_s, id))
        return self._get(id).key

    def limit(self, id: str, limits: Limits | None) -> Key:
        """What the key may use from now on, in every process. Raises `NotFound`."""
        self._get(id)
        self._change("UPDATE keys SET limits = ? WHERE id = ?", (_written(limits), id))
        return self._get(id).key

    def limit_tenant(self, name: str, limits: Limits | None) -> None:
        """What all keys of the tenant together may use. Raises `NotFound`."""
        if name not in self.tenants():
            raise NotFound(f"There is no tenant {name[:MAX_NAME_CHARS]!r}; its first key makes it.")
        self._change("UPDATE tenants SET limits = ? WHERE name = ?", (_written(limits), name))

    def tenants(self) -> dict[str, Limits | None]:
        """Every tenant that ever had a key, by name, and the limits of its own."""
        with store_errors(self.path):
            rows = self._open().execute("SELECT name, limits FROM tenants ORDER BY name").fetchall()
        return {name: _read(limits) for name, limits in rows}

    def find(self, id: str) -> StoredKey | None:
        """The key with this public id, whatever its state."""
        with store_errors(self.path):
            row = self._open().execute(f"{_SELECT} WHERE keys.id = ?", (id,)).fetchone()
        return None if row is None else _stored(row)

    def is_empty(self) -> bool:
        """Was no key ever made? Revoked and expired ones count as made."""
        with store_errors(self.path):
            return self._open().execute("SELECT 1 FROM keys LIMIT 1").fetchone() is None

    def version(self) -> tuple[int, int]:
        """Differs from an earlier one if anything was changed in between, by any process.

        A few microseconds: SQLite's own change counter, and whether it is still the same file:
        of one that was removed or replaced, nobody could revoke a key.
        """
        with store_errors(self.path):
            connection = self._open()
            if _identity(self.path) != self._file:
                # Not reopened: closing the old file would remove the new one's log.
                raise Unavailable(
                    f"The store {self.path.name} was replaced while in use; restart the gateway."
                )
            counter: int = connection.execute("PRAGMA data_version").fetchone()[0]
        return counter, self._own_changes

    def touch(self, key: Key) -> None:
        """Note that the key was used, at most every five minutes.

        Gives way to other writers, and to a full disk: a note that is lost is made later.
        """
        now_s = self.clock()
        last_s = max(key.last_used_s or 0.0, self._touched_s.get(key.id, 0.0))
        if now_s - last_s < LAST_USED_STEP_S:
            return
        self._touched_s[key.id] = now_s
        with store_errors(self.path), unhurried(connection := self._open()):
            connection.execute("UPDATE keys SET last_used_s = ? WHERE id = ?", (now_s, key.id))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = connect(self.path)
            self._file = _identity(self.path)
        return self._connection

    def _get(self, id: str) -> StoredKey:
        found = self.find(id)
        if found is None:
            raise NotFound(f"There is no key {id[:MAX_KEY_CHARS]!r}; `fewer keys list` shows them.")
        return found

    def _change(self, statement: str, values: tuple[object, ...]) -> None:
        with store_errors(self.path):
            self._open().execute(statement, values)
        # SQLite's counter only tells of the changes of others.
        self._own_changes += 1


def split_key(text: str) -> tuple[str, str] | None:
    """(public id, secret) of a key's text; None when it has not the form of one."""
    if len(text) > MAX_KEY_CHARS:
        return None
    prefix, _, rest = text.partition("-")
    id, _, secret = rest.partition("-")
    known_form = prefix == PREFIX and id.isascii() and id.isalnum() and secret
    return (id, secret) if known_form else None


def _identity(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _check(tenant: str, weight: float, expires_s: float | None, now_s: float) -> None:
    is_name = tenant.isprintable() and tenant == tenant.strip()
    if not is_name or not 0 < len(tenant) <= MAX_NAME_CHARS:
        raise InvalidRequest(
            f"A tenant's name has 1 to {MAX_NAME_CHARS} printable characters, and no space around "
            "them.",
            param="tenant",
        )
    if not 0 < weight < float("inf"):
        raise InvalidRequest(f"weight must be a number above 0, not {weight}.", param="weight")
    _check_expiry(expires_s, now_s)


def _check_expiry(expires_s: float | None, now_s: float) -> None:
    if expires_s is not None and not now_s < expires_s < LATEST_S:
        raise InvalidRequest(
            "The expiry must be in the future, as Unix seconds, before the year 9999.",
            param="expires_s",
        )


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _stored(row: tuple[Any, ...]) -> StoredKey:
    id, tenant, salt, routes, *times, admin, limits, tenant_limits, secret_sha256 = row
    allowed = None if routes is None else msgspec.json.decode(routes, type=tuple[str, ...])
    key = replace(Key(id, tenant, allowed, *times), admin=bool(admin), limits=_read(limits))
    return StoredKey(key, salt, secret_sha256, _read(tenant_limits))


def _written(limits: Limits | None) -> str | None:
    return None if limits is None or not limits.given else msgspec.json.encode(limits).decode()


def _read(text: str | None) -> Limits | None:
    return None if text is None else msgspec.json.decode(text, type=Limits)
