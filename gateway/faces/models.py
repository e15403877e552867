"""`GET /v1/models` and `/v1/models/{name}`: routes and aliases. Needs no backend."""

from __future__ import annotations

import time
from typing import Any

from starlette.types import Receive, Scope, Send

from engine.protocol.errors import ModelNotFound
from gateway.config import Config
from gateway.faces.endpoint import send_json
from gateway.routes import SHOWN_NAME_CHARS, Route, Routes
from gateway.tenants import OPEN
from gateway.visit import visit_of


class ModelsFace:
    """The list is made once; what a key may not use is left out of it."""

    def __init__(self, config: Config, routes: Routes) -> None:
        self._routes = routes
        created = int(time.time())
        self._items = {
            name: _item(config, name, routes.named(name), created)
            for name in routes.public_names(OPEN)
        }

    async def all(self, scope: Scope, receive: Receive, send: Send) -> None:
        items = [self._items[name] for name in self._names(scope)]
        await send_json(send, {"object": "list", "data": items})

    async def one(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path_params"]["name"]
        names = self._names(scope)
        if name not in names:
            raise ModelNotFound(
                f"There is no model or route {name[:SHOWN_NAME_CHARS]!r}. "
                f"Known are: {', '.join(names)}."
            )
        await send_json(send, self._items[name])

    def _names(self, scope: Scope) -> list[str]:
        return self._routes.public_names(visit_of(scope).known_tenant)


def _item(config: Config, name: str, route: Route, created: int) -> dict[str, Any]:
    """OpenAI's model object, and the window under the two names that clients look for."""
    item: dict[str, Any] = {"id": name, "object": "model", "created": created, "owned_by": "fewer"}
    model = route.candidates[0]
    window = config.models[model].max_model_len
    if config.models[model].gguf is not None:
        window = config.engine_settings(model).max_model_len
    if window is not None:
        item["max_model_len"] = item["context_length"] = window
    return item
