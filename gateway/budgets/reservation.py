"""What one request has taken of its limits, until it is known what it spent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.budgets.claims import Claim
from gateway.budgets.need import Need, spent_need
from gateway.telemetry.metrics import Spent

if TYPE_CHECKING:
    from gateway.budgets.budgets import Budgets


class Reservation:
    """Settle it once, by whichever of the two comes first; the second does nothing."""

    def __init__(self, budgets: Budgets, claims: Sequence[Claim], lease: str) -> None:
        self._budgets = budgets
        self._claims = claims
        self._lease = lease
        self._charged = Need(requests=0)
        self._settled = False

    async def settle(self, spent: Spent, dollars: float | None) -> None:
        """Exchange it for what was spent. Waits, within the store's deadline, so that who asks next
        finds what is left."""
        if (takes := self._ending(spent, dollars)) is not None:
            await self._budgets.settle(self._lease, takes)

    def settle_later(self, spent: Spent, dollars: float | None) -> None:
        """The same, for whoever must not wait."""
        if (takes := self._ending(spent, dollars)) is not None:
            self._budgets.settle_later(self._lease, takes)

    def charge(self, spent: Spent, dollars: float | None) -> None:
        """What a generation for the same request spent, beside its answer (a probe, a first
        attempt): it is settled with the rest."""
        self._charged = _sum(self._charged, spent_need(spent, dollars))

    def _ending(self, spent: Spent, dollars: float | None) -> list[Claim] | None:
        if self._settled:
            return None
        self._settled = True
        need = _sum(spent_need(spent, dollars), self._charged)
        return [
            claim if claim.field == "requests_per_minute" else claim.of(need)
            for claim in self._claims
        ]


def _sum(one: Need, other: Need) -> Need:
    return Need(
        one.requests,
        one.prompt_tokens + other.prompt_tokens,
        one.output_tokens + other.output_tokens,
        one.nanodollars + other.nanodollars,
    )
