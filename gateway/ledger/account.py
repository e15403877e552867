"""What one request will be booked as, from its first decision to its end."""

from __future__ import annotations

import time
from collections.abc import Mapping

from gateway.config import ModelConfig
from gateway.estimate import prompt_tokens
from gateway.ledger.entry import Entry, Ruling
from gateway.ledger.ledger import Ledger
from gateway.ledger.machine import dollars
from gateway.ledger.origin import origins_of
from gateway.recorder.recorder import Recorder
from gateway.telemetry.metrics import Spent, Timing
from gateway.verdict import Verdict
from gateway.visit import Visit
from policies.context import Context
from policies.repeats import asks_again
from policies.request import Request


class Account:
    """One for each request. `open` when a model has accepted it, `close` once, at its end."""

    def __init__(
        self,
        ledger: Ledger,
        models: Mapping[str, ModelConfig],
        visit: Visit,
        context: Context,
        recorder: Recorder | None = None,
    ) -> None:
        """recorder: None for what no client has asked for"""
        self._ledger = ledger
        self._recorder = recorder
        self._models = models
        self._visit = visit
        self._context = context
        self._opened: tuple[str, float] | None = None
        self._machine_s = 0.0

    def open(self) -> None:
        """From now on the model that answers is shared with this request."""
        if (model := self._visit.model) and not self._visit.reused:
            self._opened = model, self._ledger.machine(model).enter()

    def close(
        self,
        request: Request,
        verdicts: list[Verdict],
        spent: Spent,
        timing: Timing,
        error: str | None,
    ) -> None:
        """Book it. `request` as the model got it; spent: of what the visit knows of its answer"""
        visit, used = self._visit, self._visit.spent
        came = verdicts[0].before if verdicts else request
        entry = Entry(
            time_s=time.time(),
            route=self._context.route,
            tenant=self._context.tenant,
            model=visit.model,
            conversation=self._context.conversation,
            error=error,
            cut=timing.cut,
            origins=origins_of(request, spent.prompt_tokens),
            prompt_tokens=spent.prompt_tokens,
            completion_tokens=spent.completion_tokens,
            cached_tokens=timing.cached_tokens,
            reused_tokens=used.tokens - spent.tokens,
            estimated=used.estimated,
            first_token_s=timing.first_token_s,
            per_token_s=timing.per_token_s,
            queue_ms=timing.queue_ms,
            seconds=visit.seconds,
            dollars=self.dollars(spent),
            choices=request.choices,
            rulings=tuple(map(_ruling, verdicts)),
            call_id=visit.call_id,
            request_id=visit.id if visit.id != visit.call_id else None,
            unparsed=visit.unparsed,
            repeated=self._recorder is not None and asks_again(came),
            accepted_tokens=timing.accepted_tokens,
            rejected_tokens=timing.rejected_tokens,
            asked_by=visit.asked_by,
        )
        self._ledger.record(entry)
        if self._recorder is not None:
            self._recorder.note(came, request, entry, visit)

    def dollars(self, spent: Spent) -> float | None:
        """What the answer has cost, which has ended; None for a model without a price. What no
        model was asked for costs nothing."""
        if self._opened is not None:
            (model, entered_s), self._opened = self._opened, None
            self._machine_s = self._ledger.machine(model).leave(entered_s)
        visit = self._visit
        if visit.reused or not visit.model:
            return 0.0
        return dollars(self._models[visit.model].price, spent, self._machine_s)


def _ruling(verdict: Verdict) -> Ruling:
    decision = verdict.decision
    tokens = decision.tokens
    return Ruling(
        policy=verdict.policy.name,
        epoch=verdict.policy.epoch,
        mode=verdict.mode,
        arm=verdict.arm,
        action=decision.action,
        asked_tokens=tokens.asked if tokens else None,
        allowed_tokens=tokens.allowed if tokens else None,
        cut_tokens=_cut_tokens(verdict),
    )


def _cut_tokens(verdict: Verdict) -> int:
    """Prompt tokens that the decision takes out, by the policy's own count or else an estimate."""
    before, after = verdict.before, verdict.decision.request
    if verdict.decision.action == "answer":
        return prompt_tokens(before)
    if (told := verdict.decision.prompt) is not None:
        return told.before - told.after
    if after is None or (after.messages is before.messages and after.tools is before.tools):
        return 0
    return prompt_tokens(before) - prompt_tokens(after)
