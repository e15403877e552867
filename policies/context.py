"""What a policy may know besides the request."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from policies.holdout import Arm
from policies.lengths import Lengths


class Context(msgspec.Struct, frozen=True):
    """Everything here can be had again later: a decision is repeatable from request and context.

    route:        the route that the request matched
    tenant:       whose request it is; empty where no keys are configured
    conversation: which one it belongs to (`policies.holdout.conversation_of`); other tenants may
                  have one of the same name
    lengths:      of the answers in the policy's control arm, as of the ledger's latest look; None
                  before the first one
    model:        the one that answers: the route's own, or the one that the client has named
    known:        of what the policy recalls (`Policy.recalls`), as much as was kept
    """

    route: str
    tenant: str = ""
    conversation: str = ""
    lengths: Lengths | None = None
    model: str = ""
    known: Mapping[bytes, bytes] = {}


class Outcome(msgspec.Struct, frozen=True):
    """How a request that a policy was asked about ended.

    error:             the error's code; None for a complete answer
    completion_tokens: what was produced, all choices together
    cut:               a choice ended at its limit: it would have been longer
    arm:               where the policy's holdout put the conversation; None without a holdout
    """

    error: str | None
    completion_tokens: int
    cut: bool = False
    arm: Arm | None = None
