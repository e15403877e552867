"""Nothing gets past without a key, or, where no key was ever made, from beyond this machine.

With keys, every path and every WebSocket needs one; only liveness and the static files of the
pages do not, and readiness answers without one by yes or no alone. Without keys the gateway is
open to this machine: it must be bound to loopback, and a browser that was talked into calling it
is told apart by `Host` (DNS rebinding) and by `Origin` (pages of other sites). That POST bodies
must be JSON is the third lock.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from engine.protocol.errors import Forbidden, Unauthenticated
from gateway.config import ServerConfig
from gateway.tenants import OPEN, Tenant, Tenants
from gateway.visit import header, visit_of


class GuardMiddleware:
    """Puts the tenant into the visit.

    public: paths, as they stand in the request line, that GET and HEAD may have without a key
    terse:  such paths that say less to who has no key: the visit then has no tenant
    """

    def __init__(
        self,
        app: ASGIApp,
        tenants: Tenants,
        server: ServerConfig,
        public: Iterable[str],
        terse: Iterable[str] = (),
    ) -> None:
        self._app = app
        self._tenants = tenants
        self._server = server
        self._public = frozenset(path.encode("ascii") for path in public)
        self._terse = frozenset(path.encode("ascii") for path in terse)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit_of(scope).tenant = self._tenant(scope)
        await self._app(scope, receive, send)

    def _tenant(self, scope: Scope) -> Tenant | None:
        path = b""
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            path = scope.get("raw_path", b"")
        if path in self._public:
            return OPEN
        try:
            return self._authenticate(scope)
        except (Unauthenticated, Forbidden):
            if path in self._terse:
                return None
            raise

    def _authenticate(self, scope: Scope) -> Tenant:
        if self._tenants.is_open:
            self._check_is_local(scope)
            return OPEN
        presented = header(scope, b"authorization") or header(scope, b"x-api-key")
        return self._tenants.authenticate(presented)

    def _check_is_local(self, scope: Scope) -> None:
        if not is_loopback(self._server.host):
            raise Unauthenticated(
                "This server has no keys yet and listens beyond its own machine. Create a key "
                "with `fewer keys create --tenant NAME`.",
                code="missing_api_key",
            )
        host = header(scope, b"host") or ""
        if not is_loopback(_hostname(host)):
            raise Forbidden(
                "Without keys this server answers only to localhost. Call it by that name, or "
                "create a key with `fewer keys create --tenant NAME`.",
                code="host_not_allowed",
            )
        origin = header(scope, b"origin")
        if origin is not None and not self._is_permitted(origin, host):
            raise Forbidden(
                "Without keys this server does not answer pages of other origins. Add this one "
                "to server.allowed_origins.",
                code="origin_not_allowed",
            )

    def _is_permitted(self, origin: str, host: str) -> bool:
        allowed = self._server.allowed_origins
        own = origin.lower() in (f"http://{host}".lower(), f"https://{host}".lower())
        return own or origin in allowed or "*" in allowed


# The same few names come with every request, and parsing one takes as long as all other checks.
@lru_cache(64)
def is_loopback(host: str) -> bool:
    """Is this host name or address, without a port, the machine's own?"""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@lru_cache(64)
def _hostname(host: str) -> str:
    """The name of a Host header, without port and brackets; empty when it is malformed."""
    try:
        parts = urlsplit(f"//{host}")
        malformed = parts.path or parts.query or parts.fragment or "@" in parts.netloc
        return "" if malformed else parts.hostname or ""
    except ValueError:
        return ""
