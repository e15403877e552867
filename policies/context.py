"""What a policy may know besides the request."""

from __future__ import annotations

import msgspec


class Context(msgspec.Struct, frozen=True):
    """Everything here can be had again later: a decision is repeatable from request and context.

    route:  the route that the request matched
    tenant: whose request it is; empty where no keys are configured
    """

    route: str
    tenant: str = ""


class Outcome(msgspec.Struct, frozen=True):
    """How a request that a policy let through ended.

    error:             the error's code; None for a complete answer
    completion_tokens: what was produced, all choices together
    """

    error: str | None
    completion_tokens: int
