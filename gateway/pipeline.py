"""The way of a request from its canonical form to an answer. Faces come before and after.

    match route -> defaults -> policies -> candidates -> backend -> event transformers -> settle

Each stage is one function. What is known along the way goes into the request's `Visit`.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.protocol.errors import InvalidRequest
from gateway.answer import Answer, Verdict
from gateway.attempts import Attempts
from gateway.backends.base import Backend, Call, Stream
from gateway.candidates import fitting
from gateway.config import Config, RouteConfig
from gateway.policy_answer import AnsweredStream
from gateway.routes import Route, Routes
from gateway.sampling import SamplingDefaults
from gateway.telemetry.metrics import Metrics
from gateway.visit import Visit
from policies.base import Policy
from policies.budget import BudgetPolicy
from policies.context import Context
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
    ) -> None:
        """policies: by route; built from the configuration unless given."""
        self._config = config
        self._routes = routes
        self._backends = dict(backends)
        self._metrics = metrics
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
        context = Context(route.name, tenant.name)
        defaults = SamplingDefaults(self._config, route, request)
        request, verdicts = self._decide(defaults.fill(request), context)
        answer = Answer(request, route.name, visit, verdicts, context, self._metrics)
        try:
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
        """Ask the route's policies in order. An answer ends the asking; a refusal raises."""
        verdicts: list[Verdict] = []
        for policy in self._policies.get(context.route, ()):
            decision = policy.decide(request, context)
            verdicts.append(Verdict(policy, decision))
            self._metrics.decisions.labels(
                context.route, policy.name, policy.mode, decision.action
            ).inc()
            if policy.mode != "active":
                continue
            if decision.action == "refuse":
                raise InvalidRequest(decision.reason, param=decision.param, code="policy_denied")
            if decision.action == "answer":
                break
            request = decision.request or request
        return request, verdicts

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
            if verdict.policy.mode == "active" and verdict.decision.action == "answer":
                return AnsweredStream(visit.call_id, request, verdict.decision.text)
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
    return [BudgetPolicy(route.budget.max_tokens, route.budget.mode)]
