"""One log line and one count for every request, when it has ended.

The line never holds the query string, headers or anything of the body: keys travel there.
"""

from __future__ import annotations

import logging

import orjson
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.telemetry.metrics import Metrics
from gateway.visit import Visit, visit_of

CLIENT_LEFT = 499
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
            status = str(visit.status or CLIENT_LEFT)
            self._metrics.requests.labels(visit.route, status).inc()
            self._metrics.duration.labels(visit.route).observe(visit.seconds)
            if _log.isEnabledFor(logging.INFO):
                _log.info("%s", line(visit))


def line(visit: Visit) -> str:
    """JSON, so that nothing in a path can forge a second line."""
    return orjson.dumps(
        {
            "id": visit.id,
            "method": visit.method,
            "path": visit.path[:200],
            "status": visit.status or CLIENT_LEFT,
            "error": visit.error,
            "seconds": round(visit.seconds, 4),
            "tenant": visit.tenant.name if visit.tenant else None,
            "route": visit.route or None,
            "model": visit.model or None,
            "prompt_tokens": visit.spent.prompt_tokens,
            "completion_tokens": visit.spent.completion_tokens,
            "usage_estimated": visit.spent.estimated,
        }
    ).decode()
