"""The way of a request from its canonical form to an answer. Faces come before and after.

    match route -> defaults -> policies -> candidates -> backend -> event transformers -> settle

Each stage is one function. What is known along the way goes into the request's `Visit`.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.protocol.errors import InvalidRequest
from gateway.answer import Answer
from gateway.attempts import Attempts
from gateway.backends.base import Backend, Call, Stream
from gateway.candidates import fitting
from gateway.config import Config, RouteConfig
from gateway.ledger.account import Account
from gateway.ledger.ledger import Ledger
from gateway.policy_answer import AnsweredStream
from gateway.routes import Route, Routes
from gateway.sampling import SamplingDefaults
from gateway.stores.ledger import Experiment, LedgerStore
from gateway.telemetry.metrics import Metrics
from gateway.verdict import Verdict
from gateway.visit import Visit
from policies.base import Policy
from policies.budget import BudgetPolicy
from policies.context import Context
from policies.holdout import arm_of, conversation_of, epoch_of
from policies.request import Request


class Pipeline:
    """One for all requests of a process."""

    def __init__(
        self,
        config: Config,
        routes: Routes,
        backends: Mapping[str, Backend],
        metrics: Metrics,
        policies: Mapping[str, list[Policy]] | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        """policies: by route; built from the configuration unless given.
        ledger:   outlasts the pipeline; one that is written nowhere unless given
        """
        self._config = config
        self._routes = routes
        self._backends = dict(backends)
        self._metrics = metrics
        self._ledger = ledger or Ledger(LedgerStore(None), metrics)
        self._policies = policies or {
            name: policies_of(route.config) for name, route in routes.by_name.items()
        }

    def match(self, model: str, header: str | None, visit: Visit) -> Route:
        """The route, noted in the visit. Raises as `Routes.match` does."""
        route = self._routes.match(model, header, visit.known_tenant)
        visit.route = route.name
        return route

    async def answer(
        self, request: Request, route: Route, visit: Visit, traceparent: str | None = None
    ) -> Answer:
        """Start answering; returns once a backend has accepted. Close what it returns.

        Raises a `FewerError` when nobody will answer.
        """
        tenant = visit.known_tenant
        conversation = conversation_of(request) if self._policies.get(route.name) else ""
        context = Context(route.name, tenant.name, conversation)
        defaults = SamplingDefaults(self._config, route, request)
        request, verdicts = self._decide(defaults.fill(request), context)
        account = Account(self._ledger, self._config.models, visit, context)
        answer = Answer(request, route.name, visit, verdicts, context, self._metrics, account)
        try:
            _check(verdicts)
            answer.stream = await self._start(
                request, route, defaults, verdicts, visit, traceparent
            )
        except BaseException as error:
            answer.settle(error)
            raise
        return answer

    def backend(self, name: str) -> Backend:
        return self._backends[name]

    def _decide(self, request: Request, context: Context) -> tuple[Request, list[Verdict]]:
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
        mode, epoch = policy.mode, policy.epoch
        if mode == "active" and self._ledger.is_harmful(
            Experiment(context.route, policy.name, epoch)
        ):
            mode = "shadow"
        if mode != "active":
            return Verdict(policy, decision, request, mode)
        if not policy.holdout:
            return Verdict(policy, decision, request, mode, None, decision)
        arm = arm_of(policy.name, epoch, context.tenant, context.conversation, policy.holdout)
        applied = decision if arm == "treated" else policy.control(request, context)
        return Verdict(policy, decision, request, mode, arm, applied)

    async def _start(
        self,
        request: Request,
        route: Route,
        defaults: SamplingDefaults,
        verdicts: list[Verdict],
        visit: Visit,
        traceparent: str | None,
    ) -> Stream:
        for verdict in verdicts:
            if verdict.applied is not None and verdict.applied.action == "answer":
                return AnsweredStream(visit.call_id, request, verdict.applied.text)
        tenant = visit.known_tenant
        call = Call(
            id=visit.call_id,
            request=request,
            tenant=tenant.name,
            salt=tenant.salt,
            weight=tenant.weight,
            traceparent=traceparent,
        )
        names = fitting(request, route.candidates, self._backends, self._config)

        def note(model: str) -> None:
            visit.model = model

        attempts = Attempts(call, names, self._backends, self._config.models, defaults.fit, note)
        return await attempts.start()


def policies_of(route: RouteConfig) -> list[Policy]:
    """A route's policies in the order in which they are asked: output first."""
    if route.budget is None or route.budget.mode == "disabled":
        return []
    budget = BudgetPolicy(route.budget.max_tokens, route.budget.mode)
    budget.holdout, budget.epoch = route.budget.holdout, epoch_of(route.budget)
    return [budget]


def _check(verdicts: list[Verdict]) -> None:
    """Raises what the last policy that was asked refused."""
    applied = verdicts[-1].applied if verdicts else None
    if applied is not None and applied.action == "refuse":
        raise InvalidRequest(applied.reason, param=applied.param, code="policy_denied")
