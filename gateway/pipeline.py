"""The way of a request from its canonical form to an answer. Faces come before and after.

    match route -> defaults -> policies -> reserve -> candidates -> backend -> event transformers
    -> settle

Each stage is one function. What is known along the way goes into the request's `Visit`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import partial

from msgspec.structs import replace

from engine.protocol.errors import ContextLengthExceeded
from gateway.answer import Answer
from gateway.backends.base import Backend, Call, Stream
from gateway.budgets.budgets import Budgets
from gateway.cache.control import parse
from gateway.cache.flights import Note
from gateway.cache.identity import identity
from gateway.cache.question import question_for
from gateway.cache.sharing import Asked, Sharing
from gateway.cache.terms import terms_of
from gateway.config import Config
from gateway.deciding import Deciding, check
from gateway.drafting import undrafted
from gateway.history.asking import Asking, History
from gateway.ledger.account import Account
from gateway.ledger.ledger import Ledger
from gateway.policy_answer import AnsweredStream
from gateway.recorder.recorder import Recorder
from gateway.route_policies import policies_of
from gateway.routes import Route, Routes
from gateway.routing.cascades import Cascades, Put
from gateway.routing.plan import Plan, plan_of
from gateway.sampling import SamplingDefaults
from gateway.shaping import degraded
from gateway.stores.ledger import LedgerStore
from gateway.telemetry.metrics import Metrics
from gateway.tenants import Tenant
from gateway.verdict import Verdict
from gateway.visit import Visit
from policies.base import Policy
from policies.cache import key_of
from policies.context import Context
from policies.holdout import conversation_of
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
        budgets: Budgets | None = None,
        history: History | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """policies: by route; built from the configuration unless given.
        ledger, sharing, budgets, history: outlast the pipeline; without them what is written down,
                  kept for others, counted, and known of conversations, ends with it
        """
        self._config = config
        self._routes = routes
        self._backends = dict(backends)
        self._metrics = metrics
        self._ledger = ledger or Ledger(LedgerStore(None), metrics)
        self._sharing = sharing or Sharing.in_memory(metrics)
        self._budgets = budgets or Budgets.in_memory(metrics)
        self._recorder = recorder or Recorder(metrics)
        self._asking = Asking(
            config,
            self._backends,
            metrics,
            self._ledger,
            self._budgets,
            history or History.in_memory(metrics),
        )
        policies = policies or {
            name: policies_of(route.config, config.window(route.candidates[0]))
            for name, route in routes.by_name.items()
        }
        self._cascades = Cascades(config, self._backends, self._ledger, metrics)
        self._deciding = Deciding(policies, self._ledger, metrics)

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
        asked = self._deciding.has_any(route.name)
        conversation = conversation_of(request) if asked else ""
        context = Context(route.name, tenant.name, conversation, model=route.candidates[0])
        defaults = SamplingDefaults(self._config, route, request)
        recall = partial(self._asking.known, visit.known_tenant)
        request, verdicts = await self._deciding.decide(defaults.fill(request), context, recall)
        account = Account(self._ledger, self._config.models, visit, context, self._recorder)
        answer = Answer(request, route.name, visit, verdicts, context, self._metrics, account)
        answer.afterwards = partial(self._asking.begin, verdicts, context, route, visit)
        try:
            check(verdicts)
            await self._budgets.admit(request, route, self._config, visit)
            answer.stream = await self._start(
                request, route, defaults, verdicts, visit, context, traceparent
            )
            if visit.model:
                able = self._backends[visit.model].capabilities
                answer.degraded = degraded(request, able) | undrafted(verdicts, able)
        except BaseException as error:
            answer.settle(error)
            if isinstance(error, ContextLengthExceeded) and _is_uncut(request, route):
                raise _advised(error, route) from error
            raise
        return answer

    def backend(self, name: str) -> Backend:
        return self._backends[name]

    async def _start(
        self,
        request: Request,
        route: Route,
        defaults: SamplingDefaults,
        verdicts: list[Verdict],
        visit: Visit,
        context: Context,
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
        plan = plan_of(request, route, verdicts, self._backends, self._config)

        def begin(note: Note, draft: str) -> Awaitable[Stream]:
            drafted = replace(call, draft=draft)
            return self._cascades.start(Put(plan, drafted, defaults.fit, note, visit, context))

        terms = terms_of(verdicts, request, parse(visit.cache_control))
        key = partial(self._key, route, plan, tenant)
        verifies = self._backends[plan.models[0]].capabilities.prediction
        owner = f"{route.name} {tenant.name}"
        asked = Asked(
            key=b"" if terms.is_alone else key(request),
            backends=tuple(self._backends[name] for name in plan.models),
            models=plan.intended,
            choices=request.choices,
            route=route.name,
            terms=terms,
            question=question_for(verdicts, request, owner, key, verifies=verifies),
        )
        return await self._sharing.stream(asked, begin, visit)

    def _key(self, route: Route, plan: Plan, tenant: Tenant, request: Request) -> bytes:
        models = [identity(name, self._config.models[name], route) for name in plan.models]
        return key_of(request, salt=tenant.salt, route=route.name, models=[*models, plan.terms])


def _is_uncut(request: Request, route: Route) -> bool:
    """Is it a conversation with something old in it, that no setting keeps short?"""
    history = route.config.history
    answered = any(message.get("role") == "assistant" for message in request.messages)
    return answered and (history is None or history.mode != "active")


def _advised(error: ContextLengthExceeded, route: Route) -> ContextLengthExceeded:
    advice = f"The setting history of the route {route.name} would leave old turns out."
    return ContextLengthExceeded(f"{error.message} {advice}", param=error.param)
