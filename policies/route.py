"""The policy `route`: which model answers.

Rules first, then a learned router, then a cascade: the weaker model begins, and the stronger one
takes over where the first tokens show that it is unsure, before any of them was shown. The decision
follows from the conversation up to one message of the user, so that the model never changes within
a loop of tools; by default it is the first message, so that it never changes at all, and each
model's prefix cache holds whole conversations.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from policies.base import Mode, Policy
from policies.context import Context
from policies.decision import Decision, keep, route
from policies.prompt import Per, Prompt
from policies.request import Request
from policies.router_model import Router
from policies.rules import Rule


class Learned(msgspec.Struct, frozen=True):
    """The stronger model answers what scores as much as `threshold`."""

    router: Router
    threshold: float


class Cascade(msgspec.Struct, frozen=True):
    """How the weaker model is tried.

    tokens:     so many of its first tokens are judged
    min_margin: by how much, 0 to 1, its likeliest token must be more probable than the second, in
                the mean of those
    wait_ms:    then what has come is judged
    """

    tokens: int
    min_margin: float
    wait_ms: int


class RoutePolicy(Policy):
    """own:     the model that answers without the policy
    weak, strong: the two between which is chosen
    per:        which message of the user decides
    """

    name = "route"

    def __init__(
        self,
        mode: Mode,
        own: str,
        rules: Sequence[Rule] = (),
        *,
        weak: str = "",
        strong: str = "",
        learned: Learned | None = None,
        cascade: Cascade | None = None,
        per: Per = "conversation",
    ) -> None:
        self.mode = mode
        self.cascade = cascade
        self._own = own
        self._rules = rules
        self._weak = weak
        self._strong = strong
        self._learned = learned
        self._per = per

    def decide(self, request: Request, context: Context) -> Decision:
        if context.model != self._own:
            return keep(f"the client has named the model {context.model}")
        prompt = Prompt(request, self._per)
        for number, rule in enumerate(self._rules, 1):
            if rule.holds(prompt):
                return self._to(rule.model, f"rule {number}, {rule.condition}")
        if self._learned is not None:
            return self._by_score(self._learned, request, prompt)
        return self._cascaded(request, prompt, "no rule holds")

    def _by_score(self, learned: Learned, request: Request, prompt: Prompt) -> Decision:
        if not prompt.text:
            return keep("there is no text of the user's to go by")
        score = learned.router.score(prompt.text)
        if score >= learned.threshold:
            return self._to(self._strong, f"scores {score:.3f}, at least {learned.threshold:.3f}")
        reason = f"scores {score:.3f}, below {learned.threshold:.3f}"
        if self.cascade is None or self._why_whole(request, prompt):
            return self._to(self._weak, reason)
        return self._cascaded(request, prompt, reason)

    def _cascaded(self, request: Request, prompt: Prompt, reason: str) -> Decision:
        if self.cascade is None:
            return keep(reason)
        if why := self._why_whole(request, prompt):
            return self._to(self._strong, f"{reason}; {why}")
        return route((self._weak, self._strong), f"{reason}: {self._weak}, while it is sure")

    def _to(self, model: str, reason: str) -> Decision:
        told = f"{reason}: {model}"
        return keep(told) if model == self._own else route((model,), told)

    def _why_whole(self, request: Request, prompt: Prompt) -> str | None:
        """Why one model must answer it from the beginning; None where two may."""
        if request.surface != "chat" or request.choices != 1:
            return "several choices, or no chat"
        # Each step of a loop would be judged by itself, and might go to the other model.
        return "tools" if prompt.has_tools else None
