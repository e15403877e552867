"""Recorded traffic under a configuration, without a model.

Each request is put to the policies of its route as the gateway would put it, holdouts included.
What a model would have answered, nobody asks: an answer is as long as it was, up to its new limit,
and takes as long as it took. Which answers would have been another's follows from keys and times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.cache.control import parse
from gateway.cache.terms import terms_of
from gateway.config import Config
from gateway.deciding import Deciding
from gateway.ledger.ledger import Ledger
from gateway.recorder.line import Line
from gateway.recorder.reuse import Reuse
from gateway.recorder.sizes import allowed_tokens
from gateway.recorder.standin import request_of
from gateway.recorder.tally import Missing, PolicyTally, Result, RouteTally, Sums
from gateway.route_policies import policies_of
from gateway.routes import Route, Routes
from gateway.stores.ledger import LedgerStore
from gateway.telemetry.metrics import Metrics
from gateway.verdict import Verdict
from policies.agent import AgentPolicy
from policies.base import Policy
from policies.budget import BudgetPolicy
from policies.cache import ExactCachePolicy, key_of
from policies.coalesce import CoalescePolicy
from policies.context import Context
from policies.counting import request_tokens
from policies.history import HistoryPolicy
from policies.input_budget import InputPolicy
from policies.request import Request
from policies.semantic import SemanticCachePolicy
from policies.shape import ShapePolicy
from policies.summary import SummaryPolicy

_SIZES_DO = (
    AgentPolicy, BudgetPolicy, CoalescePolicy, ExactCachePolicy, HistoryPolicy, ShapePolicy,
)  # fmt: skip
"""Policies that decide by what a recording without content holds."""


class Replay:
    """Give it the lines in the order in which the requests came, then take the `result`."""

    def __init__(self, config: Config) -> None:
        self._routes = Routes(config).by_name
        self._policies = {
            name: policies_of(route.config, config.window(route.candidates[0]))
            for name, route in self._routes.items()
        }
        metrics = Metrics()
        self._ledger = Ledger(LedgerStore(None), metrics)
        self._metrics = metrics
        self._reuse = Reuse()
        self._by_route: dict[str, RouteTally] = {}
        self._by_policy: dict[tuple[str, str], PolicyTally] = {}
        self._missing: set[Missing] = set()
        self._unknown: dict[str, int] = {}
        self._requests = 0

    async def add(self, line: Line) -> None:
        """One request more."""
        self._requests += 1
        route = self._routes.get(line.route)
        if route is None:
            self._unknown[line.route] = self._unknown.get(line.route, 0) + 1
            return
        came = request_of(line)
        context = Context(route.name, line.tenant, line.conversation, model=route.candidates[0])
        sent, verdicts = await self._deciding(line).decide(came, context, _known)
        tally = self._by_route.setdefault(route.name, RouteTally(route.name))
        tally.requests += 1
        tally.failed += line.ended.error is not None
        _count_recorded(tally.recorded, line)
        source = self._count_replayed(tally.replayed, line, route, sent, verdicts)
        self._count_policies(line, verdicts, source)

    def result(self, unreadable: int = 0) -> Result:
        """unreadable: lines of the recording that were none"""
        return Result(
            requests=self._requests,
            unreadable=unreadable,
            routes=[self._by_route[name] for name in sorted(self._by_route)],
            policies=list(self._by_policy.values()),
            missing=sorted(self._missing),
            unknown=dict(sorted(self._unknown.items())),
        )

    def _deciding(self, line: Line) -> Deciding:
        """With the policies that can be asked about this line."""
        asked = []
        for policy in self._policies[line.route]:
            if (why := _why_not(policy, has_content=line.request is not None)) is None:
                asked.append(policy)
            else:
                self._missing.add(Missing(line.route, policy.name, why))
        return Deciding({line.route: asked}, self._ledger, self._metrics)

    def _count_replayed(
        self, sums: Sums, line: Line, route: Route, sent: Request, verdicts: Sequence[Verdict]
    ) -> str:
        """Says where the answer comes from: empty where no model and nobody else gives one."""
        applied = [verdict.applied for verdict in verdicts if verdict.applied is not None]
        actions = {decision.action for decision in applied}
        if "refuse" in actions:
            sums.refused += 1
            return ""
        if "answer" in actions:
            sums.answered += 1
            return ""
        ended = line.ended
        source = self._reuse.source(
            key_of(sent, salt=line.tenant, route=route.name, models=route.candidates),
            terms_of(verdicts, sent, parse(line.cache_control)),
            line.begun_s,
            ended.seconds,
            whole=ended.error is None,
            cut=ended.cut,
        )
        _add(sums, source)
        if source not in ("hit", "joined"):
            sums.prompt_tokens += request_tokens(sent)
            _add_completion(sums, line, allowed_tokens(sent))
        return source

    def _count_policies(self, line: Line, verdicts: Iterable[Verdict], source: str) -> None:
        recorded = {ruling.policy: ruling for ruling in line.decisions}
        for verdict in verdicts:
            name = verdict.policy.name
            tally = self._by_policy.setdefault(
                (line.route, name), PolicyTally(line.route, name, verdict.policy.mode)
            )
            tally.requests += 1
            before = recorded.get(name)
            if before is not None and before.mode == "active" and before.arm != "control":
                tally.recorded += before.action != "keep"
            if verdict.arm == "control":
                tally.held_out += 1
            elif verdict.decision.action != "keep":
                _count_decision(tally, verdict)
            if (name, source) in (("cache", "hit"), ("coalesce", "joined")):
                tally.reused += 1


async def _known(keys: Sequence[bytes], context: Context) -> Context:
    """What was kept for earlier requests: nothing, in a replay."""
    return context


def _why_not(policy: Policy, *, has_content: bool) -> str | None:
    """Why the policy cannot be replayed; None if it can."""
    if isinstance(policy, SummaryPolicy):
        return "needs a model, for its summaries"
    if isinstance(policy, SemanticCachePolicy):
        return "finds answers by meaning, which no key tells"
    if has_content or isinstance(policy, _SIZES_DO):
        return None
    if isinstance(policy, InputPolicy) and not policy.is_ranked:
        return None
    return "needs content, which was not recorded"


def _count_recorded(sums: Sums, line: Line) -> None:
    ended = line.ended
    actions = {ruling.action for ruling in line.decisions if ruling.mode == "active"}
    if ended.source:
        _add(sums, ended.source)
    elif ended.error is None and "answer" in actions:
        sums.answered += 1
    elif "refuse" in actions:
        sums.refused += 1
    if ended.source in ("miss", "draft", "bypass"):
        sums.prompt_tokens += ended.sent_tokens
        sums.completion_tokens += ended.completion_tokens


def _add(sums: Sums, source: str) -> None:
    if source in ("hit", "similar"):
        sums.hits += 1
    elif source == "joined":
        sums.joined += 1
    else:
        sums.generations += 1


def _add_completion(sums: Sums, line: Line, allowed: int | None) -> None:
    """As long as it was, up to the new limit."""
    ended = line.ended
    written = ended.completion_tokens
    if allowed is not None and written > allowed:
        sums.cut_short += 1
        written = allowed
    elif ended.cut and (allowed is None or allowed > (ended.allowed_tokens or 0)):
        sums.open_ended += 1
    sums.completion_tokens += written


def _count_decision(tally: PolicyTally, verdict: Verdict) -> None:
    decision = verdict.decision
    tally.touched += 1
    tally.refused += decision.action == "refuse"
    if decision.tokens is not None and decision.tokens.asked is not None:
        tally.asked_tokens += decision.tokens.asked
        tally.allowed_tokens += decision.tokens.allowed
    before, after = verdict.before, decision.request
    if after is not None and after.messages is not before.messages:
        tally.prompt_before += request_tokens(before)
        tally.prompt_after += request_tokens(after)
