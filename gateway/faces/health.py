"""`/health/live`, `/health/ready` and `/metrics`: for orchestrators and Prometheus.

Orchestrators have no key, so the two of health answer without one; `/metrics` needs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.types import Receive, Scope, Send

from gateway.backends.base import Backend
from gateway.drain import Drain
from gateway.faces.endpoint import send_bytes, send_json
from gateway.routes import Routes, may_use
from gateway.telemetry.metrics import CONTENT_TYPE, Metrics
from gateway.tenants import Tenant
from gateway.visit import visit_of

READY_TIMEOUT_S = 1.0


class HealthFace:
    """Live: this process answers. Ready: at least one route can be served, and no drain."""

    def __init__(self, routes: Routes, backends: Mapping[str, Backend], drain: Drain) -> None:
        self._routes = routes
        self._backends = backends
        self._drain = drain

    async def live(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, {"status": "live"})

    async def ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Without a tenant, only the status: names are for who has a key."""
        models = await self._ready_models()
        routes = {
            name: any(models[model] for model in route.candidates)
            for name, route in self._routes.by_name.items()
        }
        ready = any(routes.values()) and not self._drain.started
        status = "draining" if self._drain.started else "ready" if ready else "not ready"
        answer: dict[str, Any] = {"status": status}
        if (tenant := visit_of(scope).tenant) is not None:
            answer |= self._named(tenant, routes, models)
        await send_json(
            send,
            answer,
            status=200 if ready else 503,
            headers=[] if ready else [(b"retry-after", b"1")],
        )

    def _named(
        self, tenant: Tenant, routes: dict[str, bool], models: dict[str, bool]
    ) -> dict[str, dict[str, bool]]:
        """Of all these, what the tenant may use."""
        own = {name: ready for name, ready in routes.items() if may_use(tenant, name)}
        behind = {model for name in own for model in self._routes.by_name[name].models}
        return {
            "routes": own,
            "models": {name: ready for name, ready in models.items() if name in behind},
        }

    async def _ready_models(self) -> dict[str, bool]:
        found = await asyncio.gather(*map(_is_ready, self._backends.values()))
        return dict(zip(self._backends, found, strict=True))


async def _is_ready(backend: Backend) -> bool:
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            return await backend.ready()
    except TimeoutError:
        return False


class MetricsFace:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_bytes(send, self._metrics.text(), CONTENT_TYPE)
