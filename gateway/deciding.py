"""Asking a route's policies about a request, and settling what holds of what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.protocol.errors import InvalidRequest
from gateway.ledger.ledger import Ledger
from gateway.stores.ledger import Experiment
from gateway.telemetry.metrics import Metrics
from gateway.verdict import Verdict
from policies.base import Policy
from policies.context import Context
from policies.holdout import arm_of
from policies.request import Request


class Deciding:
    """policies: by route, in the order in which they are asked"""

    def __init__(
        self, policies: Mapping[str, Sequence[Policy]], ledger: Ledger, metrics: Metrics
    ) -> None:
        self._policies = policies
        self._ledger = ledger
        self._metrics = metrics

    def has_any(self, route: str) -> bool:
        """Will any policy be asked?"""
        return bool(self._policies.get(route))

    def decide(self, request: Request, context: Context) -> tuple[Request, list[Verdict]]:
        """Ask the route's policies in order. An answer or a refusal ends the asking."""
        verdicts: list[Verdict] = []
        for policy in self._policies.get(context.route, ()):
            verdict = self._verdict(policy, request, context)
            verdicts.append(verdict)
            self._metrics.decisions.labels(
                context.route, policy.name, verdict.mode, verdict.decision.action
            ).inc()
            if (applied := verdict.applied) is None:
                continue
            if applied.action in ("refuse", "answer"):
                break
            request = applied.request or request
        return request, verdicts

    def _verdict(self, policy: Policy, request: Request, context: Context) -> Verdict:
        """Ask one policy, and settle what holds of what it says."""
        decision = policy.decide(request, context)
        mode, epoch, share = policy.mode, policy.epoch, policy.holdout
        if mode != "active":
            return Verdict(policy, decision, request, mode)
        if self._ledger.is_harmful(Experiment(context.route, policy.name, epoch)):
            applied = policy.control(request, context)
            return Verdict(policy, decision, request, "shadow", None, applied)
        if not share:
            return Verdict(policy, decision, request, mode, None, decision)
        arm = arm_of(policy.name, epoch, context.tenant, context.conversation, share)
        applied = decision if arm == "treated" else policy.control(request, context)
        return Verdict(policy, decision, request, mode, arm, applied)


def check(verdicts: list[Verdict]) -> None:
    """Raises `InvalidRequest`: what the last policy that was asked refused."""
    applied = verdicts[-1].applied if verdicts else None
    if applied is not None and applied.action == "refuse":
        raise InvalidRequest(applied.reason, param=applied.param, code="policy_denied")
