"""The policy `budget`: one hard cap on what a request may produce, under whatever name.

The cap counts all choices together, n for each prompt: a limit on one choice alone would leak
through `n`. A client's limit is the smallest under any of its names. A missing limit is filled,
a larger one clamped, and n is lowered only where the cap has not a token for each choice.

The soft limit is a share of what each choice may have: from there on it ends at the first clean
place, so that the cap cuts few answers in the middle. The learned limit is the length that most of
the route's answers do not exceed. Both are experiments, which the cap is not.

What a model thinks before it answers has, where the route says so, a room of its own: the cap is
then of answers, and no thought can eat them.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from policies.base import Mode, Policy
from policies.context import Context
from policies.decision import Arithmetic, Decision, keep, refuse, rewrite
from policies.forms import may_think, must_be_whole
from policies.lengths import Lengths
from policies.request import Request

OTHER_NAMES = ("n_predict", "num_predict", "max_new_tokens", "max_gen_tokens", "max_length")
"""What upstreams call the output budget beside OpenAI's names (llama.cpp lets n_predict win over
max_tokens). Taken for the client's limit and removed, so that only ours arrives."""


class _Plan(msgspec.Struct, frozen=True):
    """Choices that are made, choices that are returned (`best_of` makes more), tokens for each, of
    those the soft limit, whether it is the learned limit that counts, and what each may think."""

    made: int
    n: int
    max_tokens: int
    soft_max_tokens: int | None
    is_learned: bool
    reasoning_tokens: int | None

    @property
    def most_tokens(self) -> int:
        return self.max_tokens + (self.reasoning_tokens or 0)


class Learning(msgspec.Struct, frozen=True):
    """How a limit for each choice follows from the lengths of answers that had none.

    percentile:   so many percent of them fit, 1 to 99
    least_tokens: it is never less
    least_answers: so many must have been seen
    """

    percentile: int
    least_tokens: int
    least_answers: int

    def limit(self, lengths: Lengths | None) -> int | None:
        """None while too little is known."""
        if lengths is None or lengths.answers < self.least_answers:
            return None
        found = lengths.percentile(self.percentile)
        return None if found is None else max(found, self.least_tokens)


class BudgetPolicy(Policy):
    """max_tokens: the cap, over all choices of one request, at least 1
    soft:       share of a choice's tokens that come before its soft limit, 0 to 1
    learning:   how the limit of each choice is learned; None for the cap alone
    reasoning_tokens: over all choices, what models may think beside the cap
    """

    name = "budget"

    def __init__(
        self,
        max_tokens: int,
        mode: Mode = "active",
        *,
        soft: float | None = None,
        learning: Learning | None = None,
        reasoning_tokens: int | None = None,
    ) -> None:
        self.max_tokens = max_tokens
        self.mode = mode
        self.soft = soft
        self.learning = learning
        self.reasoning_tokens = reasoning_tokens

    def decide(self, request: Request, context: Context) -> Decision:
        learned = self.learning.limit(context.lengths) if self.learning is not None else None
        # What is of use only when it is whole is not cut where most others end.
        return self._decide(request, self.soft, None if must_be_whole(request) else learned)

    def control(self, request: Request, context: Context) -> Decision:
        """The cap holds in both arms: a holdout must not be a way around it."""
        return self._decide(request, None, None)

    def _decide(self, request: Request, soft: float | None, learned: int | None) -> Decision:
        prompts = max(1, len(request.prompts))
        if prompts > self.max_tokens:
            return refuse(
                f"{prompts} prompts do not fit into this route's budget of {self.max_tokens} "
                f"output tokens. Send fewer prompts in one request.",
                "prompt",
            )
        made = max(request.n, _best_of(request))
        wanted = _wanted(request)
        plan = self._plan(request, made, wanted, soft, learned)
        tokens = Arithmetic(
            asked=None if wanted is None else wanted * made * prompts,
            allowed=plan.most_tokens * plan.made * prompts,
        )
        rewritten = _apply(plan, request, filled=request.clamp or wanted is None)
        if rewritten == request:
            return keep(f"within {self.max_tokens}", tokens)
        return rewrite(rewritten, _reason(request, wanted, plan), tokens)

    def _plan(
        self,
        request: Request,
        made: int,
        wanted: int | None,
        soft: float | None,
        learned: int | None,
    ) -> _Plan:
        prompts = max(1, len(request.prompts))
        made = min(made, self.max_tokens // prompts)
        share = self.max_tokens // (made * prompts)
        capped = share if wanted is None else min(wanted, share)
        allowed = capped if learned is None else min(capped, learned)
        return _Plan(
            made,
            min(request.n, made),
            allowed,
            _soft(request, allowed, soft),
            is_learned=allowed < capped,
            reasoning_tokens=self._reasoning(request, made * prompts),
        )

    def _reasoning(self, request: Request, outputs: int) -> int | None:
        if self.reasoning_tokens is None or not may_think(request):
            return None
        return self.reasoning_tokens // outputs


def _soft(request: Request, max_tokens: int, share: float | None) -> int | None:
    """The client's own soft limit or ours, whichever is less; None where it would change nothing.

    Ours is not for answers that are of use only when they are whole.
    """
    limits = [max_tokens, request.soft_max_tokens or max_tokens]
    if share is not None and not must_be_whole(request):
        limits.append(max(1, round(share * max_tokens)))
    least = min(limits)
    return least if least < max_tokens else None


def _best_of(request: Request) -> int:
    return _count(request.parameters.get("best_of")) or 1


def _wanted(request: Request) -> int | None:
    """The client's own limit for one choice, under any name. Negative means none (llama.cpp)."""
    given = [request.max_tokens, *(_count(request.parameters.get(name)) for name in OTHER_NAMES)]
    return min((value for value in given if value is not None), default=None)


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _apply(plan: _Plan, request: Request, *, filled: bool) -> Request:
    parameters = {k: v for k, v in request.parameters.items() if k not in OTHER_NAMES}
    if "best_of" in parameters:
        parameters["best_of"] = plan.made
    if (least := parameters.get("min_tokens")) is not None and least > plan.max_tokens:
        parameters["min_tokens"] = plan.max_tokens
    return replace(
        request,
        n=plan.n,
        max_tokens=plan.max_tokens,
        soft_max_tokens=plan.soft_max_tokens,
        reasoning_tokens=plan.reasoning_tokens,
        clamp=filled,
        parameters=parameters,
    )


def _reason(request: Request, wanted: int | None, plan: _Plan) -> str:
    parts = []
    if wanted is None:
        parts.append(f"max_tokens filled: {plan.max_tokens}")
    elif plan.max_tokens < wanted:
        parts.append(f"max_tokens clamped: {wanted} to {plan.max_tokens}")
    elif request.max_tokens != wanted:
        parts.append(f"max_tokens {wanted} taken from another name")
    if plan.is_learned:
        parts.append("as learned")
    if (soft := plan.soft_max_tokens) is not None and soft != request.soft_max_tokens:
        parts.append(f"soft limit: {soft}")
    if (thought := plan.reasoning_tokens) is not None and thought != request.reasoning_tokens:
        parts.append(f"beside it {thought} for reasoning")
    if plan.n < request.n:
        parts.append(f"n clamped: {request.n} to {plan.n}")
    return "; ".join(parts) or "parameters fitted to the budget"
