"""Raw ASGI endpoints under Starlette's routing: methods, JSON answers, and what is not there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.protocol.errors import NotFound
from gateway.errors import MethodNotAllowed

Headers = list[tuple[bytes, bytes]]


class Methods:
    """One page: an application for each method it knows, 405 for the rest."""

    def __init__(self, **applications: ASGIApp) -> None:
        self._applications = dict(applications)
        if "GET" in applications:
            self._applications["HEAD"] = applications["GET"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        application = self._applications.get(scope["method"])
        if application is None:
            allowed = ", ".join(sorted(self._applications))
            raise MethodNotAllowed(
                f"{scope['path'][:100]} takes {allowed}, not {scope['method'][:20]}.",
                allowed=allowed,
            )
        await application(scope, receive, send)


class NothingHere:
    """What is asked for and does not exist: 404, with the address that was probably meant."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        raise NotFound(f"There is no {path[:100]!r} here.{self._hint(path)}", code="not_found")

    def _hint(self, path: str) -> str:
        for meant in (f"/v1{path}", path.rstrip("/"), path.replace("/v1/v1", "/v1")):
            if meant != path and meant in self._paths:
                advice = " The base URL of this server ends in /v1." if "/v1" in meant else ""
                return f" Did you mean {meant}?{advice}"
        family = f"/{path.strip('/').partition('/')[0]}/"
        known_here = (known for known in self._paths if "/admin/" not in known)
        near = sorted(known for known in known_here if known.startswith(family))
        # What begins like an API gets to know the API; not every asset, nor a path's parameters,
        # nor what is for admins.
        named = [known for known in near if family in ("/v1/", "/health/") and "{" not in known]
        return f" There are {', '.join(named)}." if named else ""


async def send_json(send: Send, value: Any, *, status: int = 200, headers: Headers = []) -> None:  # noqa: B006
    """`value` as a whole JSON response. `headers` is only read."""
    await send_bytes(send, orjson.dumps(value), b"application/json", status, headers)


async def send_bytes(
    send: Send, body: bytes, media: bytes, status: int = 200, headers: Iterable[Any] = ()
) -> None:
    head = [(b"content-type", media), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body, "more_body": False})
