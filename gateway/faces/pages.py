"""The chat page at `/` and the files it is made of, under `/assets/`.

Everything is read once, when the routes are built, and answered by raw ASGI endpoints. The
policy of the page forbids whatever does not come from here and every way to turn text into
markup (https://www.w3.org/TR/CSP3/, https://w3c.github.io/trusted-types/dist/spec/).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

_FOLDER = Path(__file__).parent / "pages"
_ENTRY = "chat.html"
_CONTENT_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
_POLICY = "; ".join(
    (
        "default-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "object-src 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    # A browser asks each time and is answered by 304: an upgrade shows at once.
    (b"cache-control", b"no-cache"),
)


class StaticPage:
    """One file as an ASGI endpoint, with an entity tag."""

    def __init__(self, path: Path) -> None:
        self._body = path.read_bytes()
        self._tag = f'"{hashlib.sha256(self._body).hexdigest()[:24]}"'.encode()
        self._headers = (
            *_HEADERS,
            (b"content-type", _CONTENT_TYPES[path.suffix]),
            (b"etag", self._tag),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 200 with the file, or 304 when the client has it."""
        status, body, headers = 304, b"", list(self._headers)
        if self._tag not in _known_tags(scope):
            status, body = 200, self._body
            headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send(
            {"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body}
        )


def routes() -> list[Route]:
    """`/` and every asset, to be mounted in the gateway's application."""
    assets = [
        Route(f"/assets/{path.name}", StaticPage(path), methods=["GET"])
        for path in sorted(_FOLDER.iterdir())
        if path.suffix in _CONTENT_TYPES and path.name != _ENTRY
    ]
    return [Route("/", StaticPage(_FOLDER / _ENTRY), methods=["GET"]), *assets]


def _known_tags(scope: Scope) -> list[bytes]:
    """The entity tags of If-None-Match, weak ones as strong (RFC 9110, 13.1.2)."""
    for name, value in scope["headers"]:
        if name == b"if-none-match":
            return [tag.strip().removeprefix(b"W/") for tag in bytes(value).split(b",")]
    return []
