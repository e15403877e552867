"""`GET /v1/ledger`: what was spent, and what policies saved of it. For admin keys: it names every
tenant."""

from __future__ import annotations

import time
from functools import partial
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from engine.protocol.errors import Forbidden, InvalidRequest
from gateway.faces.endpoint import send_json
from gateway.ledger.ledger import Ledger
from gateway.ledger.report import report
from gateway.visit import visit_of

DEFAULT_DAYS = 7.0


class LedgerFace:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not visit_of(scope).known_tenant.admin:
            raise Forbidden(
                "This key may not read the ledger: it names every tenant. Create one with "
                "`fewer keys create --tenant NAME --admin`.",
                code="admin_key_needed",
            )
        days = _days(scope)
        harmful = self._ledger.harmful
        make = partial(report, now_s=time.time(), days=days, harmful=harmful)
        await send_json(send, await self._ledger.ask(make))


def _days(scope: Scope) -> float:
    given = parse_qs(scope["query_string"].decode("latin-1")).get("days")
    if not given:
        return DEFAULT_DAYS
    try:
        days = float(given[-1])
    except ValueError:
        days = 0.0
    if not 0 < days < float("inf"):
        raise InvalidRequest("days must be a number above 0.", param="days")
    return days
