"""What the admin API is sent, and what it shows."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.budgets.claims import Standing
from gateway.budgets.limits import NANODOLLARS, Limits
from gateway.config_values import Section
from gateway.stores.keys import Key


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
