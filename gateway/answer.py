"""An answer on its way from a backend to a face: transformed, metered, and settled at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

from engine.protocol.errors import Cancelled, FewerError, UpstreamFailed
from engine.protocol.frames import Event, Failed, StreamEvent
from gateway.backends.base import Stream, is_terminal
from gateway.errors import of_failed
from gateway.estimate import prompt_tokens
from gateway.headers import told
from gateway.ledger.account import Account
from gateway.legibility import Legibility
from gateway.telemetry.metrics import Meter, Metrics, Spent, Timing
from gateway.verdict import Verdict
from gateway.visit import Visit
from policies.base import Transformer
from policies.context import Context, Outcome
from policies.request import Request


class Answer:
    """An answer on its way. Use it as a context manager: leaving it settles and frees all.

    stream:   where it comes from; set before the block is entered. When there will be none, call
              `settle` instead
    degraded: by policy, what the model that answers does less well than was decided
    afterwards: called once, when it was answered whole
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
        self._legibility = Legibility.of(request)
        self._ended = False
        self._given_tokens = 0
        self.degraded: dict[str, str] = {}
        self.afterwards: Callable[[], None] | None = None

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """What the client is told about the way its request went."""
        return told(self._visit, self._verdicts, self._context, self.degraded)

    async def receive(self) -> list[StreamEvent]:
        """The next events, at least one, the last of them a terminal at the end."""
        events = await self.stream.receive()
        if not events and not self._ended:
            broken = UpstreamFailed(f"The model {self._visit.model} broke off its answer.")
            events = [Failed.of(self._visit.call_id, broken)]
        meter = self._meter = self._meter or self._new_meter()
        meter.observe(events)
        if self._visit.reused:
            self._given_tokens = meter.seen_tokens
        if events and is_terminal(events[-1]):
            self._note(events[-1])
            await self._settle_limits()
        if self._transformers:
            events = self._transformed(events)
        if self._legibility is not None:
            self._legibility.feed(events)
        return events

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

    def _new_meter(self) -> Meter:
        # No model has worked for an answer that was there.
        model = "" if self._visit.reused else self._visit.model
        return Meter(self._metrics, self._route, model, self._visit.begun_s)

    def _note(self, terminal: StreamEvent) -> None:
        self._ended = True
        if isinstance(terminal, Failed):
            failure = of_failed(terminal)
            self._visit.status, self._visit.error = failure.status, failure.code
        elif self._visit.reused and isinstance(terminal, Event) and terminal.usage is not None:
            usage = terminal.usage
            self._visit.saved_tokens = usage.prompt_tokens + usage.completion_tokens

    async def _settle_limits(self) -> None:
        """Before the client hears of the end: what it asks next finds what is left."""
        if (reservation := self._visit.reservation) is not None:
            spent = self._spent()
            await reservation.settle(spent, self._account.dollars(spent))

    def _spent(self) -> Spent:
        """On this request. What came while another one led was that one's, with the prompt: it has
        paid for it when it leaves."""
        if self._meter is None or self._visit.reused:
            return Spent()
        spent = self._meter.spent(partial(prompt_tokens, self.request))
        if not self._given_tokens:
            return spent
        return Spent(0, max(0, spent.completion_tokens - self._given_tokens), spent.estimated)

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
        if isinstance(error, asyncio.CancelledError) and visit.model and not visit.reused:
            self._meter = self._meter or self._new_meter()
            self._meter.was_left = True
        spent = self._spent()
        if self._meter is not None:
            visit.spent = self._meter.settle(partial(prompt_tokens, self.request))
            timing = self._meter.timing
        if visit.reused:
            self._metrics.save(self._route, visit.spent)
        code = visit.error
        if isinstance(error, FewerError):
            code = error.code
            if visit.debug:
                visit.error_headers = self.headers
        elif not self._ended:
            code = code or Cancelled.code
        visit.unparsed = code is None and bool(self._legibility and self._legibility.failed)
        for verdict in self._verdicts:
            outcome = Outcome(code, visit.spent.completion_tokens, timing.cut, verdict.arm)
            verdict.policy.settled(self._context, outcome)
        if visit.reservation is not None:
            visit.reservation.settle_later(spent, self._account.dollars(spent))
        self._account.close(self.request, self._verdicts, spent, timing, code)
        if code is None and self.afterwards is not None:
            self.afterwards()


def _transformers(request: Request, verdicts: list[Verdict], context: Context) -> list[Transformer]:
    """Of all policies that have a say, those whose control arm has one among them."""
    made = (v.policy.transformer(request, context) for v in verdicts if v.applied is not None)
    return [transformer for transformer in made if transformer is not None]
