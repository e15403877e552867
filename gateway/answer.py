"""An answer on its way from a backend to a face: transformed, metered, and settled at its end."""

from __future__ import annotations

import json
from functools import partial
from types import TracebackType
from typing import Self

from engine.protocol.errors import Cancelled, FewerError, UpstreamFailed
from engine.protocol.frames import Event, Failed, StreamEvent
from gateway.backends.base import Stream, is_terminal
from gateway.errors import of_failed
from gateway.estimate import prompt_tokens
from gateway.ledger.account import Account
from gateway.telemetry.metrics import Meter, Metrics, Timing
from gateway.verdict import Verdict
from gateway.visit import Visit
from policies.base import Transformer
from policies.context import Context, Outcome
from policies.request import Request


class Answer:
    """An answer on its way. Use it as a context manager: leaving it settles and frees all.

    stream: where it comes from; set before the block is entered. When there will be none, call
            `settle` instead
    """

    stream: Stream

    def __init__(
        self,
        request: Request,
        route: str,
        visit: Visit,
        verdicts: list[Verdict],
        context: Context,
        metrics: Metrics,
        account: Account,
    ) -> None:
        self.request = request
        self._route = route
        self._visit = visit
        self._verdicts = verdicts
        self._context = context
        self._metrics = metrics
        self._account = account
        self._meter: Meter | None = None
        self._transformers = _transformers(request, verdicts, context)
        self._ended = False

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """What the client is told about the way its request went."""
        decisions = [_told(verdict) for verdict in self._verdicts]
        told = {"x-fewer-route": self._route, "x-fewer-model": self._visit.model}
        told["x-fewer-cache"] = self._visit.cache
        if saved_tokens := self._visit.saved_tokens:
            told["x-fewer-tokens-saved"] = str(saved_tokens)
        told["x-fewer-decisions"] = json.dumps(decisions, separators=(",", ":"))
        return [(name.encode(), value.encode()) for name, value in told.items() if value]

    async def receive(self) -> list[StreamEvent]:
        """The next events, at least one, the last of them a terminal at the end."""
        events = await self.stream.receive()
        if not events and not self._ended:
            broken = UpstreamFailed(f"The model {self._visit.model} broke off its answer.")
            events = [Failed.of(self._visit.call_id, broken)]
        if self._meter is None:
            # No model has worked for an answer that was there.
            model = "" if self._visit.reused else self._visit.model
            self._meter = Meter(self._metrics, self._route, model, self._visit.begun_s)
        self._meter.observe(events)
        if events and is_terminal(events[-1]):
            self._note(events[-1])
        return self._transformed(events) if self._transformers else events

    async def __aenter__(self) -> Self:
        self._account.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.stream.aclose()
        finally:
            self.settle(error)

    def _note(self, terminal: StreamEvent) -> None:
        self._ended = True
        if isinstance(terminal, Failed):
            failure = of_failed(terminal)
            self._visit.status, self._visit.error = failure.status, failure.code
        elif self._visit.reused and isinstance(terminal, Event) and terminal.usage is not None:
            usage = terminal.usage
            self._visit.saved_tokens = usage.prompt_tokens + usage.completion_tokens

    def _transformed(self, events: list[StreamEvent]) -> list[StreamEvent]:
        for transformer in self._transformers:
            after: list[StreamEvent] = []
            for event in events:
                if isinstance(event, Failed):
                    after.append(event)
                elif isinstance(event, Event) and event.usage is not None:
                    after += [*transformer.flush(), event]
                else:
                    after += transformer.feed(event)
            events = after
        return events

    def settle(self, error: BaseException | None) -> None:
        """Meter, tell the policies, book it, and leave the numbers for the access log."""
        visit, timing = self._visit, Timing()
        if self._meter is not None:
            visit.spent = self._meter.settle(partial(prompt_tokens, self.request))
            timing = self._meter.timing
        if visit.reused:
            self._metrics.save(self._route, visit.spent)
        code = visit.error
        if isinstance(error, FewerError):
            code = error.code
        elif not self._ended:
            code = code or Cancelled.code
        for verdict in self._verdicts:
            outcome = Outcome(code, visit.spent.completion_tokens, timing.cut, verdict.arm)
            verdict.policy.settled(self._context, outcome)
        self._account.close(self.request, self._verdicts, timing, code)


def _told(verdict: Verdict) -> dict[str, str]:
    told = {
        "policy": verdict.policy.name,
        "mode": verdict.mode,
        "action": verdict.decision.action,
        "reason": verdict.decision.reason,
    }
    return told | {"arm": verdict.arm} if verdict.arm else told


def _transformers(request: Request, verdicts: list[Verdict], context: Context) -> list[Transformer]:
    made = (v.policy.transformer(request, context) for v in verdicts if v.obeyed)
    return [transformer for transformer in made if transformer is not None]
