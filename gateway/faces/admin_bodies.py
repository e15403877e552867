"""What the admin API is sent, checked, and what it shows."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

import msgspec

from engine.protocol.body import decode_object
from engine.protocol.errors import InvalidRequest
from gateway.budgets.claims import Standing
from gateway.budgets.limits import NANODOLLARS, Limits
from gateway.config_file import Document, decode
from gateway.config_values import Section
from gateway.stores.keys import Key

_T = TypeVar("_T")


class NewKeyBody(Section, frozen=True):
    """As `KeyStore.create` takes it. expires_s: Unix seconds"""

    tenant: str
    routes: tuple[str, ...] | None = None
    weight: float = 1.0
    expires_s: float | None = None
    admin: bool = False
    limits: Limits | None = None


class ExpiryBody(Section, frozen=True):
    """expires_s: Unix seconds; null for never"""

    expires_s: float | None


class NoBody(Section, frozen=True):
    """For what takes no settings."""


class _Body(Document):
    """Held to the same rules as the configuration; what is wrong is a 400 that names the field."""

    def fail(self, key: tuple[str, ...], message: str) -> NoReturn:
        field = ".".join(key)
        raise InvalidRequest(f"{field or 'The body'}: {message}", param=field or None)


def read(data: bytes, kind: type[_T]) -> _T:
    """The body as a `kind`; none at all is an empty one. Raises `InvalidRequest`."""
    return decode(_Body("body", decode_object(data or b"{}"), {}), kind)


def shown_key(key: Key, now_s: float) -> dict[str, Any]:
    """Never its text."""
    shown = msgspec.to_builtins(key)
    shown |= {"object": "key", "state": key.state(now_s), "limits": shown_limits(key.limits)}
    return dict(shown)


def shown_limits(limits: Limits | None) -> dict[str, Any] | None:
    """What is limited, and for which period."""
    if limits is None:
        return None
    given = msgspec.structs.asdict(limits)
    return {name: value for name, value in given.items() if value is not None}


def shown_standing(standing: Standing) -> dict[str, Any]:
    """Dollars as dollars. resets_in_s: null for what never is"""
    claim, limit = standing.claim, standing.claim.take.limit
    unit = NANODOLLARS if claim.field == "budget_dollars" else 1
    amounts = {"used": standing.state.used, "of": limit, "remaining": standing.remaining}
    never = standing.reset_s == float("inf")
    return {
        "subject": claim.subject.kind,
        "name": claim.subject.name,
        "limit": claim.field,
        **{name: amount / unit if unit > 1 else amount for name, amount in amounts.items()},
        "resets_in_s": None if never else round(standing.reset_s, 3),
    }
