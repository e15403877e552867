"""`GET /v1/ledger`: what was spent, and what policies saved of it; `/v1/ledger/ID`: one request.

For admin keys: it names every tenant.
"""

from __future__ import annotations

import time
from functools import partial
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from engine.protocol.errors import Forbidden, InvalidRequest, NotFound
from gateway.faces.endpoint import send_json
from gateway.ledger.feedback import call_id_of
from gateway.ledger.ledger import Ledger
from gateway.ledger.report import report
from gateway.stores.ledger import LedgerStore
from gateway.visit import visit_of

DEFAULT_DAYS = 7.0


class LedgerFace:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def all(self, scope: Scope, receive: Receive, send: Send) -> None:
        _check_may_read(scope)
        days = _days(scope)
        harmful = self._ledger.harmful
        make = partial(report, now_s=time.time(), days=days, harmful=harmful)
        await send_json(send, await self._ledger.ask(make))

    async def one(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, by its answer's id or its x-request-id."""
        _check_may_read(scope)
        id = scope["path_params"]["id"]
        find = partial(LedgerStore.request, call_id=call_id_of(id), request_id=id)
        found = await self._ledger.ask(find)
        if found is None:
            raise NotFound(f"The ledger has no request {id[:128]!r}.", code="request_not_found")
        await send_json(send, {"object": "ledger.request", **found})


def _check_may_read(scope: Scope) -> None:
    if not visit_of(scope).known_tenant.admin:
        raise Forbidden(
            "This key may not read the ledger: it names every tenant. Create one with "
            "`fewer keys create --tenant NAME --admin`.",
            code="admin_key_needed",
        )


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
