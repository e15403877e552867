"""Asking a route's policies about a request, and settling what holds of what they say."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from engine.protocol.errors import ContextLengthExceeded, InvalidRequest
from gateway.beside import Beside
from gateway.estimate import prompt_tokens
from gateway.ledger.ledger import Ledger
from gateway.stores.ledger import Experiment
from gateway.telemetry.metrics import Metrics
from gateway.verdict import Verdict
from policies.base import Policy
from policies.context import Context
from policies.holdout import Arm, arm_of
from policies.request import Request

LONG_TOKENS = 16_384
"""Of a prompt, by estimate. Policies read all of it, up to a microsecond for each byte: what is
longer is decided beside the event loop."""

Recall = Callable[[Sequence[bytes], Context], Awaitable[Context]]
"""Adds to a context what was kept under these keys."""


class Deciding:
    """policies: by route, in the order in which they are asked"""

    def __init__(
        self, policies: Mapping[str, Sequence[Policy]], ledger: Ledger, metrics: Metrics
    ) -> None:
        self._policies = policies
        self._ledger = ledger
        self._metrics = metrics
        self._beside = Beside()

    def has_any(self, route: str) -> bool:
        """Will any policy be asked?"""
        return bool(self._policies.get(route))

    async def decide(
        self, request: Request, context: Context, recall: Recall
    ) -> tuple[Request, list[Verdict]]:
        """Ask the route's policies in order. An answer or a refusal ends the asking.

        Raises `Overloaded` when too many long prompts wait for it.
        """
        verdicts: list[Verdict] = []
        policies = self._policies.get(context.route, ())
        is_long = bool(policies) and prompt_tokens(request) > LONG_TOKENS
        for policy in policies:
            recalls = partial(policy.recalls, request, context)
            keys = await self._beside.run(recalls) if is_long else recalls()
            if keys and self._arm(policy, context) != "control":
                context = await recall(keys, context)
            ask = partial(self._timed, policy, request, context)
            verdict = await self._beside.run(ask) if is_long else ask()
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

    def _timed(self, policy: Policy, request: Request, context: Context) -> Verdict:
        begun_s = time.perf_counter()
        verdict = self._verdict(policy, request, context)
        return replace(verdict, took_s=time.perf_counter() - begun_s)

    def _verdict(self, policy: Policy, request: Request, context: Context) -> Verdict:
        """Ask one policy, and settle what holds of what it says."""
        mode = policy.mode
        experiment = Experiment(context.route, policy.name, policy.epoch)
        if (lengths := self._ledger.lengths(experiment)) is not None:
            context = replace(context, lengths=lengths)
        decision = policy.decide(request, context)
        if mode != "active":
            return Verdict(policy, decision, request, mode)
        if self._ledger.is_harmful(experiment):
            applied = policy.control(request, context)
            return Verdict(policy, decision, request, "shadow", None, applied)
        arm = self._arm(policy, context)
        applied = policy.control(request, context) if arm == "control" else decision
        return Verdict(policy, decision, request, mode, arm, applied)

    def _arm(self, policy: Policy, context: Context) -> Arm | None:
        """Where the policy's holdout puts the conversation; None without one."""
        if policy.mode != "active" or not policy.holdout:
            return None
        epoch, share = policy.epoch, policy.holdout
        return arm_of(policy.name, epoch, context.tenant, context.conversation, share)


def check(verdicts: list[Verdict]) -> None:
    """Raises `InvalidRequest`: what the last policy that was asked refused."""
    applied = verdicts[-1].applied if verdicts else None
    if applied is not None and applied.action == "refuse":
        too_long = applied.code == ContextLengthExceeded.code
        kind = ContextLengthExceeded if too_long else InvalidRequest
        raise kind(applied.reason, param=applied.param, code=applied.code)
