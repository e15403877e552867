"""One log line and one count for every request, when it has ended.

Polls of health and metrics, and the page's own files, are lines for debugging unless they fail:
machines ask for them again and again, and the log is for people. No line holds the query string,
headers or anything of the body: keys travel there.
"""

from __future__ import annotations

import logging

import orjson
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.telemetry.metrics import Metrics
from gateway.visit import Visit, visit_of

CLIENT_LEFT = 499
_POLLED = frozenset({"/health/live", "/health/ready", "/metrics"})
_log = logging.getLogger("fewer.access")


class AccessLogMiddleware:
    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = visit_of(scope)
        try:
            await self._app(scope, receive, send)
        finally:
            note(visit, self._metrics)


def note(visit: Visit, metrics: Metrics) -> None:
    """Count and log what has ended."""
    status = str(visit.status or CLIENT_LEFT)
    metrics.requests.labels(visit.route, status).inc()
    metrics.duration.labels(visit.route).observe(visit.seconds)
    if _log.isEnabledFor(level := _level(visit)):
        _log.log(level, "%s", line(visit))


def _level(visit: Visit) -> int:
    status = visit.status or CLIENT_LEFT
    # Not ready yet, or no longer, is an answer like any other to who asks just that.
    expected = status < 400 or (status == 503 and visit.path == "/health/ready")
    routine = visit.path in _POLLED or visit.path.startswith("/assets/")
    return logging.DEBUG if routine and expected else logging.INFO


def line(visit: Visit) -> str:
    """JSON, so that nothing in a path can forge a second line. What is not known is left out."""
    fields: dict[str, str | int | float | bool | None] = {
        "id": visit.id,
        "method": visit.method,
        "path": visit.path[:200],
        "status": visit.status or CLIENT_LEFT,
        "error": visit.error,
        "seconds": round(visit.seconds, 4),
        "tenant": visit.tenant.name if visit.tenant else None,
    }
    if visit.route:
        fields |= {
            "route": visit.route,
            "model": visit.model or None,
            "prompt_tokens": visit.spent.prompt_tokens,
            "completion_tokens": visit.spent.completion_tokens,
            "usage_estimated": visit.spent.estimated,
            "cache": visit.cache or None,
        }
    known = {name: value for name, value in fields.items() if value is not None}
    return orjson.dumps(known).decode()
