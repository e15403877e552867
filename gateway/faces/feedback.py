"""`POST /v1/feedback`: what somebody thinks of an answer, for the ledger and its experiments."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Literal

from msgspec import Meta
from starlette.types import Receive, Scope, Send

from engine.protocol.errors import InvalidRequest, NotFound
from gateway.config_values import Section
from gateway.faces.body import read
from gateway.faces.endpoint import send_json
from gateway.ledger.feedback import Feedback, call_id_of
from gateway.ledger.ledger import Ledger
from gateway.middleware.limits import whole_body
from gateway.stores.ledger import LedgerStore
from gateway.visit import visit_of

_THUMBS = {"up": 1.0, "down": -1.0}


class _Body(Section, frozen=True):
    request_id: Annotated[str, Meta(min_length=1, max_length=128)]
    score: Annotated[float, Meta(ge=-1, le=1)] | None = None
    thumb: Literal["up", "down"] | None = None
    label: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


class FeedbackFace:
    """Any key may speak about requests of its own tenant. What is said later holds."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = parse(await whole_body(receive))
        given = _feedback(body, visit_of(scope).known_tenant.name)
        if not await self._ledger.ask(partial(LedgerStore.add_feedback, feedback=given)):
            # The same for a request that another tenant has made: nobody learns whose ids exist.
            raise NotFound(
                f"There is no request {body.request_id!r}. Give the answer's id or its header "
                "x-request-id, once the answer has ended.",
                param="request_id",
                code="request_not_found",
            )
        told = {"object": "feedback", "request_id": body.request_id, "score": given.score}
        await send_json(send, told | ({"label": given.label} if given.label else {}))


def parse(data: bytes) -> _Body:
    """Raises `InvalidRequest` with what is wrong."""
    body = read(data, _Body)
    if (body.score is None) == (body.thumb is None):
        raise InvalidRequest("Give either score, from -1 to 1, or thumb: up or down.")
    return body


def _feedback(body: _Body, tenant: str) -> Feedback:
    score = _THUMBS[body.thumb] if body.thumb else body.score or 0.0
    return Feedback(
        tenant=tenant,
        request_id=body.request_id,
        call_id=call_id_of(body.request_id),
        score=score,
        given_s=time.time(),
        label=body.label,
    )
