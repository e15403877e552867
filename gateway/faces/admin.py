"""`/v1/admin/…`: keys and limits, changed while the gateway runs, and what is used of them.

For admin keys; in a gateway without keys, for this machine, as everything there. Each change is
one line of the log `fewer.audit`, which says who made it.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any

import orjson
from starlette.routing import Route as Page
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.protocol.errors import Forbidden, InvalidRequest
from gateway.budgets.budgets import Budgets
from gateway.budgets.limits import Limits
from gateway.budgets.usage import limited
from gateway.config import Config
from gateway.faces.admin_bodies import (
    ExpiryBody,
    NewKeyBody,
    NoBody,
    shown_key,
    shown_limits,
    shown_standing,
)
from gateway.faces.body import read
from gateway.faces.endpoint import Methods, send_json
from gateway.middleware.limits import LimitsMiddleware, whole_body
from gateway.stores.key_desk import KeyDesk
from gateway.stores.keys import Key, KeyStore, NewKey
from gateway.tenants import OPEN
from gateway.visit import header, visit_of

_log = logging.getLogger("fewer.audit")


class AdminFace:
    """The pages of one configuration."""

    def __init__(self, config: Config, desk: KeyDesk, budgets: Budgets) -> None:
        self._config = config
        self._desk = desk
        self._budgets = budgets

    def pages(self) -> list[Page]:
        keys, key = "/v1/admin/keys", "/v1/admin/keys/{id}"
        return [
            Page(keys, Methods(GET=_admins(self.keys), POST=self._post(self.create))),
            Page(f"{key}/rotate", Methods(POST=self._post(self.rotate))),
            Page(f"{key}/revoke", Methods(POST=self._post(self.revoke))),
            Page(f"{key}/expire", Methods(POST=self._post(self.expire))),
            Page(f"{key}/limits", Methods(POST=self._post(self.limit_key))),
            Page("/v1/admin/tenants", Methods(GET=_admins(self.tenants))),
            Page(
                "/v1/admin/tenants/{name:path}/limits",
                Methods(POST=self._post(self.limit_tenant)),
            ),
            Page("/v1/admin/usage", Methods(GET=_admins(self.usage))),
        ]

    async def keys(self, scope: Scope, receive: Receive, send: Send) -> None:
        keys = await self._desk.ask(KeyStore.list)
        await _send_list(send, [shown_key(key, time.time()) for key in keys])

    async def create(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = read(await whole_body(receive), NewKeyBody)
        for place, route in enumerate(body.routes or ()):
            if route not in self._config.routes:
                known = ", ".join(self._config.routes) or "none"
                raise InvalidRequest(
                    f"There is no route {route[:64]!r}. Known are: {known}.",
                    param=f"routes[{place}]",
                )
        new = await self._desk.ask(
            lambda store: store.create(
                body.tenant,
                routes=body.routes,
                weight=body.weight,
                expires_s=body.expires_s,
                admin=body.admin,
                limits=body.limits,
            )
        )
        _note(scope, "create", new.key)
        await _send_new(send, new, status=201)

    async def rotate(self, scope: Scope, receive: Receive, send: Send) -> None:
        read(await whole_body(receive), NoBody)
        new = await self._desk.ask(lambda store: store.rotate(_id(scope)))
        _note(scope, "rotate", new.key)
        await _send_new(send, new)

    async def revoke(self, scope: Scope, receive: Receive, send: Send) -> None:
        read(await whole_body(receive), NoBody)
        key = await self._desk.ask(lambda store: store.revoke(_id(scope)))
        await _send_changed(scope, send, "revoke", key)

    async def expire(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = read(await whole_body(receive), ExpiryBody)
        key = await self._desk.ask(lambda store: store.expire(_id(scope), body.expires_s))
        await _send_changed(scope, send, "expire", key)

    async def limit_key(self, scope: Scope, receive: Receive, send: Send) -> None:
        limits = read(await whole_body(receive), Limits)
        key = await self._desk.ask(lambda store: store.limit(_id(scope), limits))
        await _send_changed(scope, send, "limit", key)

    async def tenants(self, scope: Scope, receive: Receive, send: Send) -> None:
        tenants = await self._desk.ask(KeyStore.tenants)
        await _send_list(send, [_shown_tenant(*each) for each in tenants.items()])

    async def limit_tenant(self, scope: Scope, receive: Receive, send: Send) -> None:
        limits = read(await whole_body(receive), Limits)
        name = scope["path_params"]["name"]
        await self._desk.ask(lambda store: store.limit_tenant(name, limits))
        own = limits if limits.given else None
        _audit(scope, "limit", tenant=name, limits=shown_limits(own))
        await send_json(send, _shown_tenant(name, own))

    async def usage(self, scope: Scope, receive: Receive, send: Send) -> None:
        subjects = limited(self._config)
        if self._desk.keeps_any:
            subjects = await self._desk.ask(partial(limited, self._config))
        standings = await self._budgets.look(subjects)
        await _send_list(send, [shown_standing(standing) for standing in standings])

    def _post(self, page: ASGIApp) -> ASGIApp:
        return _admins(LimitsMiddleware(page, self._config.server))


def _admins(page: ASGIApp) -> ASGIApp:
    """`page`, for admin keys."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if not visit_of(scope).known_tenant.admin:
            raise Forbidden(
                "Only an admin key may see and change keys and limits. Create one with "
                "`fewer keys create --tenant NAME --admin`.",
                code="admin_key_needed",
            )
        if visit_of(scope).known_tenant is OPEN and _is_foreign(scope):
            raise Forbidden(
                "Without keys no page of another origin may make them, whatever "
                "server.allowed_origins says.",
                code="origin_not_allowed",
            )
        await page(scope, receive, send)

    return guarded


def _is_foreign(scope: Scope) -> bool:
    """Does a browser ask for a page that did not come from here?"""
    origin, host = header(scope, b"origin"), header(scope, b"host")
    return origin is not None and origin.partition("://")[2].lower() != (host or "").lower()


def _id(scope: Scope) -> str:
    id: str = scope["path_params"]["id"]
    return id


def _shown_tenant(name: str, limits: Limits | None) -> dict[str, Any]:
    return {"object": "tenant", "name": name, "limits": shown_limits(limits)}


async def _send_list(send: Send, items: list[dict[str, Any]]) -> None:
    await send_json(send, {"object": "list", "data": items})


async def _send_new(send: Send, new: NewKey, *, status: int = 200) -> None:
    """The only time that the key's text is shown."""
    shown = shown_key(new.key, time.time()) | {"key": new.text}
    await send_json(send, shown, status=status, headers=[(b"cache-control", b"no-store")])


async def _send_changed(scope: Scope, send: Send, action: str, key: Key) -> None:
    _note(scope, action, key)
    await send_json(send, shown_key(key, time.time()))


def _note(scope: Scope, action: str, key: Key) -> None:
    _audit(
        scope,
        action,
        key=key.id,
        tenant=key.tenant,
        admin=key.admin,
        expires_s=key.expires_s,
        limits=shown_limits(key.limits),
    )


def _audit(scope: Scope, action: str, **what: Any) -> None:
    visit = visit_of(scope)
    who = {"request": visit.id, "by": visit.known_tenant.key_id or "this machine"}
    known = {name: value for name, value in what.items() if value is not None}
    _log.info("%s", orjson.dumps({"action": action, **who, **known}).decode())
