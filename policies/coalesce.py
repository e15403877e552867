"""The policy `coalesce`: the same request while it is being answered shares that answer."""

from __future__ import annotations

from policies.base import Mode, Policy
from policies.cache import why_unrepeatable
from policies.context import Context
from policies.decision import Decision, keep
from policies.request import Request


class CoalescePolicy(Policy):
    """Says which requests may share one generation: those that would be answered alike anyway.

    Whoever asks for samples wants another one each time, so these are never shared.
    """

    name = "coalesce"

    def __init__(self, mode: Mode = "active") -> None:
        self.mode = mode

    def applies(self, request: Request) -> bool:
        return why_unrepeatable(request) is None

    def decide(self, request: Request, context: Context) -> Decision:
        reason = why_unrepeatable(request)
        return keep("shared" if reason is None else f"not shared: {reason}")
