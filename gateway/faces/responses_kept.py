"""`/v1/responses/{id}` and below: responses that are kept, or being written in this process."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from engine.protocol.errors import InvalidRequest
from gateway.faces.endpoint import send_json
from gateway.responses.records import Records
from gateway.responses.running import Running
from gateway.visit import visit_of

MAX_LISTED = 100


class KeptResponsesFace:
    """Another tenant's response is as one that never was."""

    def __init__(self, records: Records, running: Running) -> None:
        self._records = records
        self._running = running

    async def one(self, scope: Scope, receive: Receive, send: Send) -> None:
        if _query(scope, "stream", "false") == "true":
            raise InvalidRequest("A response is not streamed again here.", param="stream")
        id, salt = _named(scope)
        running = self._running.find(id, salt)
        await send_json(send, await self._kept(id, salt) if running is None else running.response())

    async def delete(self, scope: Scope, receive: Receive, send: Send) -> None:
        id, salt = _named(scope)
        await self._records.forget(id, salt)
        await send_json(send, {"id": id, "object": "response", "deleted": True})

    async def cancel(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One that has ended stays as it is."""
        id, salt = _named(scope)
        running = self._running.stop(id, salt)
        if running is None:
            await send_json(send, await self._kept(id, salt))
            return
        response = running.response()
        await send_json(send, response if running.ended else response | {"status": "cancelled"})

    async def input_items(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What was sent for it, former turns included; newest first unless `order=asc`."""
        id, salt = _named(scope)
        record = await self._records.find(id, salt)
        items = [item for turn in record.turns for item in turn]
        await send_json(send, _page(items, scope))

    async def _kept(self, id: str, salt: str) -> dict[str, Any]:
        return (await self._records.find(id, salt)).response


def _page(items: list[dict[str, Any]], scope: Scope) -> dict[str, Any]:
    """A page of OpenAI's lists: `limit` items `after` the one with that id."""
    if _query(scope, "order", "desc") == "desc":
        items = items[::-1]
    after = _query(scope, "after", "")
    ids = [item["id"] for item in items]
    rest = items[ids.index(after) + 1 :] if after in ids else items
    page = rest[: _limit(scope)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(page) < len(rest),
    }


def _limit(scope: Scope) -> int:
    given = _query(scope, "limit", "20")
    if not (given.isascii() and given.isdigit() and 1 <= int(given[:9]) <= MAX_LISTED):
        raise InvalidRequest(f"limit must be between 1 and {MAX_LISTED}.", param="limit")
    return int(given)


def _named(scope: Scope) -> tuple[str, str]:
    """The id in the path, and the tenant's salt."""
    return scope["path_params"]["id"], visit_of(scope).known_tenant.salt


def _query(scope: Scope, name: str, default: str) -> str:
    values = parse_qs(scope["query_string"].decode("latin-1")).get(name)
    return values[-1] if values else default
