"""What a model was asked in vain: charged to the request, and booked as its policy's own."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.config import ModelConfig
from gateway.ledger.account import Account
from gateway.ledger.ledger import Ledger
from gateway.telemetry.metrics import Metrics, Spent, Timing
from gateway.verdict import Verdict
from gateway.visit import Visit
from policies.context import Context
from policies.request import Request


class Trying:
    """One model's attempt at a request that another may answer. End it once, in one way or the
    other.

    parent: the request's own
    """

    def __init__(
        self,
        model: str,
        parent: Visit,
        context: Context,
        ledger: Ledger,
        models: Mapping[str, ModelConfig],
    ) -> None:
        self._parent = parent
        self._visit = Visit(
            id=parent.id,
            call_id=f"{parent.call_id}-first",
            method="",
            path="",
            tenant=parent.tenant,
            route=context.route,
            model=model,
        )
        self._account = Account(ledger, models, self._visit, context)
        self._account.open()

    def end(self) -> None:
        """Its answer is the request's: it is booked there."""
        self._account.dollars(Spent())

    def end_in_vain(
        self, spent: Spent, request: Request, verdict: Verdict, metrics: Metrics
    ) -> None:
        """It is a line of its own in the ledger, on the same conversation: what the policy spends
        counts against what it saves. It takes what it spent from the request's limits."""
        visit = self._visit
        visit.spent = spent
        # Metrics keep it apart from what clients were given.
        metrics.count(f"{visit.route}:{verdict.policy.name}", visit.model, spent)
        dollars = self._account.dollars(spent)
        if self._parent.reservation is not None:
            self._parent.reservation.charge(spent, dollars)
        self._account.close(request, [verdict], spent, Timing(), None)
        # Until another model is asked, there is none that the request itself has to pay for.
        self._parent.model = ""
