"""The way of a request from its canonical form to an answer. Faces come before and after.

    match route -> defaults -> policies -> candidates -> backend -> event transformers -> settle

Each stage is one function. What is known along the way goes into the request's `Visit`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from engine.protocol.errors import ContextLengthExceeded, InvalidRequest
from gateway.answer import Answer
from gateway.attempts import Attempts
from gateway.backends.base import Backend, Call, Stream
from gateway.cache.control import parse
from gateway.cache.flights import Note
from gateway.cache.sharing import Asked, Sharing
from gateway.cache.terms import terms_of
from gateway.candidates import fitting
from gateway.config import (
    BudgetConfig,
    CoalesceConfig,
    Config,
    DedupConfig,
    ExactCacheConfig,
    HistoryConfig,
    ModelConfig,
    RouteConfig,
)
from gateway.ledger.account import Account
from gateway.ledger.ledger import Ledger
from gateway.policy_answer import AnsweredStream
from gateway.routes import Route, Routes
from gateway.sampling import SamplingDefaults
from gateway.stores.ledger import Experiment, LedgerStore
from gateway.telemetry.metrics import Metrics
from gateway.tenants import Tenant
from gateway.verdict import Verdict
from gateway.visit import Visit
from policies.base import Policy
from policies.budget import BudgetPolicy
from policies.cache import ExactCachePolicy, key_of
from policies.coalesce import CoalescePolicy
from policies.context import Context
from policies.counting import VERSION as COUNTING
from policies.dedup import DedupPolicy
from policies.history import HistoryPolicy
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
        sharing: Sharing | None = None,
    ) -> None:
        """policies: by route; built from the configuration unless given.
        ledger, sharing: outlast the pipeline; without them what is written down, and what is
                  kept for others, ends with it
        """
        self._config = config
        self._routes = routes
        self._backends = dict(backends)
        self._metrics = metrics
        self._ledger = ledger or Ledger(LedgerStore(None), metrics)
        self._sharing = sharing or Sharing.in_memory(metrics)
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
            if isinstance(error, ContextLengthExceeded) and _is_uncut(request, route):
                raise _advised(error, route) from error
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
        models = self._config.models

        def begin(note: Note) -> Awaitable[Stream]:
            return Attempts(call, names, self._backends, models, defaults.fit, note).start()

        terms = terms_of(verdicts, request, parse(visit.cache_control))
        asked = Asked(
            key=b"" if terms.is_alone else self._key(request, route, names, tenant),
            backends=tuple(self._backends[name] for name in names),
            model=names[0],
            choices=request.choices,
            route=route.name,
            terms=terms,
        )
        return await self._sharing.stream(asked, begin, visit)

    def _key(self, request: Request, route: Route, names: list[str], tenant: Tenant) -> bytes:
        models = [_identity(name, self._config.models[name]) for name in names]
        return key_of(request, salt=tenant.salt, route=route.name, models=models)


def policies_of(route: RouteConfig) -> list[Policy]:
    """A route's policies in the order in which they are asked: output first."""
    found: list[Policy] = []
    if (budget := route.budget) is not None:
        cap = BudgetPolicy(budget.max_tokens, budget.mode, soft=budget.soft)
        found.append(_set(cap, budget))
    exact = route.cache.exact
    cache = ExactCachePolicy(
        exact.mode,
        sampled=exact.requests == "all",
        keep_cut=exact.cut_answers == "kept",
        ttl_s=route.cache.ttl_s,
    )
    found += [_set(cache, exact), _set(CoalescePolicy(route.coalesce.mode), route.coalesce)]
    if (history := route.history) is not None:
        window = HistoryPolicy(history.high_tokens, history.low_tokens, history.mode)
        found.append(_set(window, history, f"-{COUNTING}"))
    if (dedup := route.dedup) is not None:
        found.append(_set(DedupPolicy(dedup.min_tokens, dedup.mode), dedup, f"-{COUNTING}"))
    return [policy for policy in found if policy.mode != "disabled"]


def _set(
    policy: Policy,
    settings: BudgetConfig | ExactCacheConfig | CoalesceConfig | HistoryConfig | DedupConfig,
    version: str = "",
) -> Policy:
    """What the settings of all have. version: of what else the policy's effect rests on."""
    policy.holdout, policy.epoch = settings.holdout, epoch_of(settings) + version
    return policy


def _identity(name: str, model: ModelConfig) -> list[str | None]:
    """What answers change with: where they come from, not how we get there."""
    return [name, model.gguf, model.engine, model.openai, str(model.scripted), model.model]


def _is_uncut(request: Request, route: Route) -> bool:
    """Is it a conversation that no setting keeps short?"""
    history = route.config.history
    return bool(request.messages) and (history is None or history.mode != "active")


def _advised(error: ContextLengthExceeded, route: Route) -> ContextLengthExceeded:
    advice = f"The setting history of the route {route.name} would leave old turns out."
    return ContextLengthExceeded(f"{error.message} {advice}", param=error.param)


def _check(verdicts: list[Verdict]) -> None:
    """Raises what the last policy that was asked refused."""
    applied = verdicts[-1].applied if verdicts else None
    if applied is not None and applied.action == "refuse":
        raise InvalidRequest(applied.reason, param=applied.param, code="policy_denied")
