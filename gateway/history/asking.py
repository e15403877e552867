"""Having a policy's child generation answered, by the backends of the pipeline that it came from.

It is a call like any other: under the tenant's salt and limits, with what the route's later
policies make of its prompt, so that it begins as the conversation's next prompts do. It is booked
in the ledger as the policy's own, on the same conversation: what a policy spends counts against
what it saves. It goes behind the tenant's other requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from engine.protocol.frames import Event, Failed
from gateway.answer import Answer
from gateway.attempts import Attempts
from gateway.backends.base import Backend, Call
from gateway.budgets.budgets import Budgets
from gateway.candidates import fitting
from gateway.config import Config
from gateway.errors import of_failed
from gateway.history.children import DEADLINE_S, Children
from gateway.history.records import Records
from gateway.ledger.account import Account
from gateway.ledger.ledger import Ledger
from gateway.routes import Route
from gateway.sampling import SamplingDefaults
from gateway.telemetry.metrics import Metrics
from gateway.tenants import Tenant
from gateway.verdict import Verdict
from gateway.visit import Visit
from policies.context import Context
from policies.decision import keep
from policies.record import Child, encode
from policies.request import Request


class History:
    """Records and children, as every configuration shares them."""

    def __init__(self, records: Records, children: Children) -> None:
        self.records = records
        self.children = children

    @classmethod
    def in_memory(cls, metrics: Metrics) -> History:
        return cls(Records.in_memory(metrics), Children(metrics))

    async def aclose(self) -> None:
        await self.children.aclose()
        await self.records.aclose()


class Asking:
    """One for a pipeline."""

    def __init__(
        self,
        config: Config,
        backends: dict[str, Backend],
        metrics: Metrics,
        ledger: Ledger,
        budgets: Budgets,
        history: History,
    ) -> None:
        self._config = config
        self._backends = backends
        self._metrics = metrics
        self._ledger = ledger
        self._budgets = budgets
        self._history = history

    async def known(self, tenant: Tenant, keys: Sequence[bytes], context: Context) -> Context:
        """The context, with what was kept under these keys."""
        known = await self._history.records.known(keys, tenant.salt, context.route)
        return replace(context, known=known)

    def begin(
        self, verdicts: Sequence[Verdict], context: Context, route: Route, visit: Visit
    ) -> None:
        """What the request's policies ask for besides, once it has been answered itself."""
        for place, verdict in enumerate(verdicts):
            applied = verdict.applied
            if verdict.obeyed and applied is not None and applied.child is not None:
                salt = visit.known_tenant.salt
                ask = partial(
                    self._ask, applied.child, verdict, verdicts[place + 1 :], context, route, visit
                )
                self._history.children.begin(route.name, (salt, context.conversation), ask)

    async def _ask(
        self,
        child: Child,
        verdict: Verdict,
        later: Sequence[Verdict],
        context: Context,
        route: Route,
        parent: Visit,
    ) -> bool:
        # A long prompt takes its time, which nobody else waits for.
        request = await asyncio.to_thread(_as_continued, child.request, later, context)
        text = await self._text(request, verdict, context, _route_of(route, parent), parent)
        record = child.record_of(text)
        if record is None:
            return False
        salt = parent.known_tenant.salt
        await self._history.records.keep(child.key, salt, route.name, encode(record))
        return True

    async def _text(
        self, request: Request, verdict: Verdict, context: Context, route: Route, parent: Visit
    ) -> str:
        visit = _visit_of(verdict, route, parent)
        defaults = SamplingDefaults(self._config, route, request)
        request = defaults.fill(request)
        account = Account(self._ledger, self._config.models, visit, context)
        asked = replace(verdict, decision=keep("a record is asked for"))
        answer = Answer(request, visit.route, visit, [asked], context, self._metrics, account)
        try:
            await self._budgets.admit(request, route, self._config, visit, child=True)
            names = fitting(request, route.candidates, self._backends, self._config)
            call = _call_of(request, visit)
            models, note = self._config.models, partial(setattr, visit, "model")
            attempts = Attempts(call, names, self._backends, models, defaults.fit, note)
            answer.stream = await attempts.start()
        except BaseException as error:
            answer.settle(error)
            raise
        async with answer:
            return await _read(answer)


def _as_continued(request: Request, later: Sequence[Verdict], context: Context) -> Request:
    """Its prompt as the policies that follow make it, which have made the parent's."""
    for verdict in later:
        if verdict.applied is not None and verdict.applied.action == "rewrite":
            request = verdict.policy.decide(request, context).request or request
    return request


def _route_of(route: Route, parent: Visit) -> Route:
    """With the model that is set for children, or else first the one that has answered: the
    conversation is in its prefix cache."""
    history = route.config.history
    if history is not None and history.model is not None:
        return replace(route, candidates=(history.model,))
    if parent.model not in route.models:
        return route
    return replace(route, candidates=tuple(dict.fromkeys((parent.model, *route.candidates))))


def _visit_of(verdict: Verdict, route: Route, parent: Visit) -> Visit:
    """Metrics keep it apart from what clients wait for."""
    id = f"{parent.call_id}-{verdict.policy.name}"
    return Visit(
        id=id,
        call_id=id,
        method="",
        path="",
        tenant=parent.tenant,
        route=f"{route.name}:{verdict.policy.name}",
        asked_by=verdict.policy.name,
    )


def _call_of(request: Request, visit: Visit) -> Call:
    tenant = visit.known_tenant
    return Call(
        id=visit.call_id,
        request=request,
        tenant=tenant.name,
        salt=tenant.salt,
        weight=tenant.weight,
        priority=-1,
        deadline_s=asyncio.get_running_loop().time() + DEADLINE_S,
    )


async def _read(answer: Answer) -> str:
    """All that is text of it. Raises what it failed with."""
    text = ""
    while events := await answer.receive():
        for event in events:
            if isinstance(event, Failed):
                raise of_failed(event)
            if isinstance(event, Event):
                text += event.text if event.kind == "text" else ""
                if event.usage is not None:
                    return text
    return text
