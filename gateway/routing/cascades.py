"""Asking the models of a plan. Of a cascade the weaker one begins, and the stronger one takes over
where it is unsure.

Until that is known nothing is shown, neither text nor headers: which model answers is settled when
the client hears of it. What the weaker one has said becomes the stronger one's draft, so that the
tokens it was right about are not written twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from engine.protocol.errors import InvalidRequest, ServiceError
from gateway.attempts import Attempts
from gateway.backends.base import Backend, Call, Stream
from gateway.config import Config
from gateway.estimate import prompt_tokens
from gateway.ledger.ledger import Ledger
from gateway.routing.plan import Beginning, Plan
from gateway.routing.trial import Result, Trial, telling_margins
from gateway.routing.trying import Trying
from gateway.telemetry.metrics import Metrics
from gateway.visit import Visit
from policies.context import Context
from policies.request import Request

_log = logging.getLogger("fewer.route")


class Put(NamedTuple):
    """One request that is put to the models of a plan.

    fit:    makes of it what one of the models is to get
    note:   told the name of each model that is tried
    parent: whose limits and conversation it is booked on
    """

    plan: Plan
    call: Call
    fit: Callable[[Request, str], Request]
    note: Callable[[str], None]
    parent: Visit
    context: Context


class _Tried(NamedTuple):
    """stream: of the model that began, where it answers; else `text` is what it has said."""

    result: Result
    stream: Stream | None = None
    text: str = ""


class Cascades:
    """One for a pipeline."""

    def __init__(
        self, config: Config, backends: dict[str, Backend], ledger: Ledger, metrics: Metrics
    ) -> None:
        self._models = config.models
        self._backends = backends
        self._ledger = ledger
        self._metrics = metrics
        self._silent: set[str] = set()

    async def start(self, put: Put) -> Stream:
        """Returns once it is known who answers. Raises as `Attempts.start` does.

        Whoever cancels it, or closes what it returns, cancels what either model does.
        """
        plan, call = put.plan, put.call
        if (beginning := plan.beginning) is None:
            return await self._attempt(put, call, plan.names)
        tried = await self._try(put, beginning)
        self._metrics.cascades.labels(put.context.route, tried.result).inc()
        if tried.result == "unknown":
            self._warn(beginning.model)
        if tried.stream is not None:
            return tried.stream
        call = replace(call, draft=tried.text or call.draft)
        return await self._attempt(put, call, plan.names)

    async def _try(self, put: Put, beginning: Beginning) -> _Tried:
        request, model = put.call.request, beginning.model
        call = replace(put.call, id=f"{put.call.id}-first", request=telling_margins(request))
        due_s = asyncio.get_running_loop().time() + beginning.cascade.wait_ms / 1000
        try:
            async with asyncio.timeout_at(due_s):
                stream = await self._attempt(put, call, (model,))
        except TimeoutError:
            return _Tried("failed")
        except (ServiceError, InvalidRequest):
            # What it was asked is not all the client's: it may refuse to tell logprobs.
            return _Tried("failed")
        trial = Trial(stream, beginning.cascade, due_s)
        trying = Trying(model, put.parent, put.context, self._ledger, self._models)
        shown = False
        try:
            result = await trial.result()
            shown = result in ("sure", "unknown")
            if shown:
                return _Tried(result, trial.shown(request))
            return _Tried(result, text=trial.text if result == "unsure" else "")
        finally:
            if shown:
                trying.end()
            else:
                spent = trial.spent(prompt_tokens(request))
                trying.end_in_vain(spent, request, beginning.verdict, self._metrics)
                await trial.aclose()

    async def _attempt(self, put: Put, call: Call, names: Sequence[str]) -> Stream:
        attempts = Attempts(call, names, self._backends, self._models, put.fit, put.note)
        return await attempts.start()

    def _warn(self, model: str) -> None:
        """Once."""
        if model not in self._silent:
            self._silent.add(model)
            _log.warning(
                "%s tells no logprobs in time: a cascade cannot judge it, and shows what it says",
                model,
            )
