"""What is known about one HTTP request so far. Middleware and pipeline fill it in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.protocol.errors import FewerError
from gateway.budgets.reservation import Reservation
from gateway.telemetry.metrics import Spent
from gateway.tenants import Tenant

Source = Literal["hit", "similar", "joined", "draft", "miss", "bypass"]
"""Where an answer came from: it was kept, for this request or a similar one, or was on its way to
another; else a model was asked, with that of a similar one as a draft, or without, which for
`bypass` was settled from the start."""

_KEY = "fewer.visit"


@dataclass(slots=True)
class Visit:
    """One request, from its first byte to its last.

    id:      for people, logs and the header x-request-id
    call_id: unique in this process, whatever the client sent; the backend's id of the call
    begun_s: `time.monotonic()` of its arrival
    tenant:  who asks; set once a key was accepted
    route:   the route it matched; empty before that
    model:   the model that answers, or was tried last
    status:  HTTP status; an error in band replaces it, 499 says that the client left
    error:   code of the error it ended with
    spent:   tokens; known at the end
    reused:  its answer was made for another request: nothing was spent on this one
    cache_control: the client's header
    cache:   where its answer came from; empty before that
    similarity: of the request whose answer was of use, or would have been
    saved_tokens:  of a reused answer, as soon as they are known: prompt and output
    debug:   the client wants the whole record of what was decided
    unparsed: a program cannot read the answer that it asked for
    asked_by: the policy that asks by itself; empty for a client
    reservation:   what it has taken of its limits; None where it has none
    limit_headers: what the client is told of them
    error_headers: what it is told besides when it gets an error in place of an answer
    in_band:       how a stream that has begun tells of an error; None where as chat does
    """

    id: str
    call_id: str
    method: str
    path: str
    begun_s: float = field(default_factory=time.monotonic)
    tenant: Tenant | None = None
    route: str = ""
    model: str = ""
    status: int = 0
    error: str | None = None
    spent: Spent = field(default_factory=Spent)
    reused: bool = False
    cache_control: str | None = None
    cache: Source | Literal[""] = ""
    similarity: float | None = None
    saved_tokens: int = 0
    debug: bool = False
    unparsed: bool = False
    asked_by: str = ""
    reservation: Reservation | None = None
    limit_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    error_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    in_band: Callable[[FewerError], bytes] | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun_s

    @property
    def known_tenant(self) -> Tenant:
        """The tenant, once the guard has let the request in."""
        if self.tenant is None:
            raise RuntimeError("the request passed no guard")
        return self.tenant


def put_visit(scope: Any, visit: Visit) -> None:
    scope[_KEY] = visit


def visit_of(scope: Any) -> Visit:
    """The visit that `middleware.request_id` began."""
    visit: Visit = scope[_KEY]
    return visit


def header(scope: Any, name: bytes) -> str | None:
    """The header `name` (lower case), or None. HTTP headers are Latin-1 on the wire."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None
