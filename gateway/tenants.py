"""Who asks: keys that clients present, as tenants.

What a key may do is remembered between requests and looked up again as soon as the store says
that something was changed, so a revocation holds from the next request on, in every process.
When the store cannot be asked, nobody gets in: the answer is 503 with the reason.
"""

from __future__ import annotations

import msgspec

from engine.protocol.errors import Unauthenticated
from gateway.budgets.limits import Limits
from gateway.stores.keys import KeyStore, StoredKey, split_key

MAX_REMEMBERED = 10_000

_WRONG = "This API key is not valid."


class Tenant(msgspec.Struct, frozen=True):
    """Who a request belongs to.

    salt:           roots everything that is cached for the tenant; never shown
    key_id:         public id of the key that was presented; empty without one
    allowed_routes: None means all
    weight:         share of the engine under load
    admin:          may read what concerns every tenant
    limits:         the key's own
    tenant_limits:  of all its keys together
    """

    name: str
    salt: str
    key_id: str = ""
    allowed_routes: frozenset[str] | None = None
    weight: float = 1.0
    admin: bool = False
    limits: Limits | None = None
    tenant_limits: Limits | None = None

    def __repr__(self) -> str:
        return f"Tenant({self.name!r}, key {self.key_id or 'none'})"


OPEN = Tenant("open", "open", admin=True)
"""Everybody, where no key was ever made. The gateway then listens on loopback only."""


class Tenants:
    """Tells who presents a key.

    Without a store, or while no key was ever made in it, it is open: everybody is `OPEN`,
    whatever they present. The first key closes it at once, and revoking all keys does not open
    it again.
    """

    def __init__(self, store: KeyStore | None) -> None:
        self._store = store
        self._version: tuple[int, int] | None = None
        self._empty = False
        self._found: dict[str, tuple[StoredKey, Tenant]] = {}

    @classmethod
    def open(cls) -> Tenants:
        """No keys at all, for ever."""
        return cls(None)

    @property
    def store(self) -> KeyStore | None:
        """Where the keys are."""
        return self._store

    @property
    def is_open(self) -> bool:
        """May everybody in now? Raises `Unavailable` when the store cannot say."""
        if self._store is None:
            return True
        self._refresh(self._store)
        return self._empty

    def authenticate(self, presented: str | None) -> Tenant:
        """The tenant of a key, given as it is or as an `Authorization: Bearer` value.

        Raises `Unauthenticated` for no key and for a wrong, revoked or expired one, and
        `Unavailable` when the store cannot be asked.
        """
        if self.is_open or self._store is None:
            return OPEN
        text = _bearer(presented)
        if not text:
            raise Unauthenticated(
                "An API key is missing: send it as `Authorization: Bearer fw-…`.",
                code="missing_api_key",
            )
        parts = split_key(text)
        if parts is None:
            raise Unauthenticated(_WRONG)
        id, secret = parts
        stored, tenant = self._lookup(self._store, id)
        if not stored.matches(secret):
            raise Unauthenticated(_WRONG)
        # Only who knows the secret learns the state of the key.
        state = stored.key.state(self._store.clock())
        if state != "active":
            raise Unauthenticated(f"This API key is {state}.")
        self._store.touch(stored.key)
        return tenant

    def _refresh(self, store: KeyStore) -> None:
        version = store.version()
        if version != self._version:
            self._found.clear()
            self._empty = store.is_empty()
            self._version = version

    def _lookup(self, store: KeyStore, id: str) -> tuple[StoredKey, Tenant]:
        known = self._found.get(id)
        if known is not None:
            return known
        stored = store.find(id)
        if stored is None:
            raise Unauthenticated(_WRONG)
        key = stored.key
        routes = None if key.routes is None else frozenset(key.routes)
        known = (
            stored,
            Tenant(
                name=key.tenant,
                salt=stored.salt,
                key_id=key.id,
                allowed_routes=routes,
                weight=key.weight,
                admin=key.admin,
                limits=key.limits,
                tenant_limits=stored.tenant_limits,
            ),
        )
        if len(self._found) >= MAX_REMEMBERED:
            self._found.clear()
        self._found[id] = known
        return known


def _bearer(presented: str | None) -> str:
    value = (presented or "").strip()
    scheme, _, rest = value.partition(" ")
    return rest.strip() if scheme.lower() == "bearer" else value
