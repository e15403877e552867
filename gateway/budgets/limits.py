"""What a key, a tenant or a route may use."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.config_values import Section

Period = Literal["day", "month", "total"]
Kind = Literal["key", "tenant", "route"]
Field = Literal["requests_per_minute", "tokens_per_minute", "budget_tokens", "budget_dollars"]
FIELDS: tuple[Field, ...] = (
    "requests_per_minute", "tokens_per_minute", "budget_tokens", "budget_dollars",
)  # fmt: skip

NANODOLLARS = 1_000_000_000
"""Money is counted in whole billionths of a dollar: sums of fractions would drift."""

_Amount = Annotated[int, Meta(ge=1, le=10**12)]
_Dollars = Annotated[float, Meta(ge=1 / NANODOLLARS, le=1_000_000)]


class Limits(Section, frozen=True):
    """What is not given is not limited.

    tokens_per_minute: prompt and output together
    budget_tokens, budget_dollars: for each `period`
    period: a day or a calendar month, in UTC, or `total`: once and for all
    """

    requests_per_minute: _Amount | None = None
    tokens_per_minute: _Amount | None = None
    budget_tokens: _Amount | None = None
    budget_dollars: _Dollars | None = None
    period: Period = "month"

    @property
    def given(self) -> bool:
        """Is anything limited at all?"""
        return any(getattr(self, field) is not None for field in FIELDS)

    def __str__(self) -> str:
        """For people, on one line."""
        texts = {
            "requests_per_minute": "{:,} requests/min",
            "tokens_per_minute": "{:,} tokens/min",
            "budget_tokens": f"{{:,}} tokens{_PER[self.period]}",
            "budget_dollars": f"${{:,g}}{_PER[self.period]}",
        }
        found = [(text, getattr(self, field)) for field, text in texts.items()]
        return ", ".join(text.format(value) for text, value in found if value is not None) or "none"


_PER = {"day": "/day", "month": "/month", "total": " in all"}


class Subject(msgspec.Struct, frozen=True):
    """Whose limits they are. name: a key's public id, a tenant's or a route's name"""

    kind: Kind
    name: str
    limits: Limits

    def __str__(self) -> str:
        return f"the {self.kind} {self.name}"


def shown(field: Field, amount: int) -> str:
    """An amount as it is counted, for people."""
    if field == "budget_dollars":
        return f"${amount / NANODOLLARS:,.9f}".rstrip("0").rstrip(".")
    return f"{amount:,}"


def limit_of(limits: Limits, field: Field) -> int | None:
    """As it is counted: dollars in billionths."""
    if field == "budget_dollars":
        dollars = limits.budget_dollars
        return None if dollars is None else round(dollars * NANODOLLARS)
    count: int | None = getattr(limits, field)
    return count
