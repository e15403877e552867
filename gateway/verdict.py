"""What a policy decided about one request, and what of it was done."""

from __future__ import annotations

import msgspec

from policies.base import Mode, Policy
from policies.decision import Decision
from policies.holdout import Arm
from policies.request import Request


class Verdict(msgspec.Struct, frozen=True):
    """decision: what the policy said
    before:   the request that it was asked about
    mode:     as it is at work: an active policy that was found to do harm is a shadow
    arm:      where its holdout put the conversation; None unless it is active and has one
    took_s:   to decide
    applied:  what holds: the decision where it is obeyed; whatever the policy says that must always
              hold in the control arm, and where it was found to do harm; for a shadow nothing
    """

    policy: Policy
    decision: Decision
    before: Request
    mode: Mode
    arm: Arm | None = None
    applied: Decision | None = None
    took_s: float = 0.0

    @property
    def obeyed(self) -> bool:
        """May the policy change anything, in request, answer or store? Ask this before any read
        or write of a cache: in the control arm there is none."""
        return self.mode == "active" and self.arm != "control"
