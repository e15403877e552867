"""The counters that a request takes from, and what their states mean for it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.budgets.limits import FIELDS, Field, Subject, limit_of
from gateway.budgets.need import Need
from gateway.budgets.period import period_at
from gateway.stores.budget import State, Take


class Claim(msgspec.Struct, frozen=True):
    """One limit of one subject, and what a request takes of it."""

    subject: Subject
    field: Field
    take: Take

    def of(self, need: Need) -> Claim:
        """The same limit, for another amount."""
        take = msgspec.structs.replace(self.take, amount=need.amount(self.field))
        return msgspec.structs.replace(self, take=take)


class Standing(msgspec.Struct, frozen=True):
    """A claim, and the state of its counter after it was granted, or as it refused.

    reset_s: seconds until all of the limit is there again; infinite for a budget once and for all
    """

    claim: Claim
    state: State
    reset_s: float

    @property
    def remaining(self) -> int:
        return max(0, self.claim.take.limit - self.state.used)


def claims_of(subjects: Sequence[Subject], need: Need, now_s: float) -> tuple[Claim, ...]:
    """now_s: Unix time, which says in which period a budget is used"""
    return tuple(
        _claim(subject, field, limit, need, now_s)
        for subject in subjects
        for field in FIELDS
        if (limit := limit_of(subject.limits, field)) is not None
    )


def standings_of(
    claims: Sequence[Claim], states: Sequence[State], now_s: float
) -> tuple[Standing, ...]:
    return tuple(
        Standing(claim, state, state.reset_s if claim.take.windowed else claim.take.until_s - now_s)
        for claim, state in zip(claims, states, strict=True)
    )


def _claim(subject: Subject, field: Field, limit: int, need: Need, now_s: float) -> Claim:
    amount = need.amount(field)
    place = f"{subject.kind}:{subject.name}"
    if field.endswith("_per_minute"):
        return Claim(subject, field, Take(f"{field}:{place}", amount, limit, True))
    name, until_s = period_at(subject.limits.period, now_s)
    return Claim(subject, field, Take(f"{field}:{name}:{place}", amount, limit, False, until_s))
