"""The engine's small pages: models, health, metrics, and the tokenizer over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.protocol.body import decode_object
from engine.protocol.errors import InvalidRequest
from engine.protocol.fields import check_known, filled_string, integer, list_of, string
from engine.protocol.messages import messages, tools
from engine.server.completions import check_model
from engine.server.http import read_json_body
from engine.server.intake import Intake
from engine.server.metrics import CONTENT_TYPE, EngineMetrics

if TYPE_CHECKING:
    from engine.assembly import Engine

STUCK_S = 10.0
"""A step that lasts longer than this means that the executor hangs."""

_TOKENIZE = {
    "model": filled_string, "prompt": string, "messages": messages, "tools": tools,
}  # fmt: skip
_DETOKENIZE = {"model": filled_string, "tokens": list_of(integer(0))}


class Pages:
    """Endpoints as methods, each a Starlette handler."""

    def __init__(self, engine: Engine, intake: Intake, draining: Callable[[], bool]) -> None:
        self._engine = engine
        self._intake = intake
        self._draining = draining
        self._created = int(time.time())
        self._metrics = EngineMetrics(engine.core.statistics)

    async def live(self, request: Request) -> Response:
        """The process answers. Nothing about the engine."""
        return JSONResponse({"status": "live"})

    async def ready(self, request: Request) -> Response:
        """Can it serve now? 503 with the reason when it cannot."""
        problem = self._problem()
        now = self._engine.core.statistics()
        body = {
            "status": problem or "ready",
            "model": self._engine.name,
            "executor": self._engine.executor,
            "max_model_len": self._engine.max_model_len,
            "kv_cache_dtype": self._engine.shape.kv_dtype,
            "kv_capacity_tokens": self._engine.kv_capacity_tokens,
            "running": now.running,
            "waiting": now.waiting,
            "kv_usage_ratio": now.kv_usage_ratio,
        }
        return JSONResponse(body, 503 if problem else 200)

    def _problem(self) -> str | None:
        core = self._engine.core
        if self._draining():
            return "draining"
        if not core.alive:
            return "stopped"
        return "stuck" if core.seconds_since_step > STUCK_S else None

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        check_model({"model": request.path_params["model"]}, self._engine.name)
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        return {
            "id": self._engine.name,
            "object": "model",
            "created": self._created,
            "owned_by": "fewer",
            "max_model_len": self._engine.max_model_len,
        }

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), headers={"content-type": CONTENT_TYPE.decode()})

    async def tokenize(self, request: Request) -> Response:
        """vLLM's shape: a prompt or messages in, token ids and their count out."""
        fields = await self._fields(request, _TOKENIZE)
        given = [name for name in ("prompt", "messages") if fields.get(name) is not None]
        if len(given) != 1:
            raise InvalidRequest("Give either prompt or messages.", param="prompt")
        if given == ["messages"]:
            ids = await self._intake.render(fields["messages"], fields.get("tools"))
        else:
            ids = await self._intake.encode(fields["prompt"])
        answer = {"count": len(ids), "max_model_len": self._engine.max_model_len, "tokens": ids}
        # Not Starlette's own: the standard library takes 0.2 s of the event loop for a long text.
        return Response(orjson.dumps(answer), media_type="application/json")

    async def detokenize(self, request: Request) -> Response:
        """vLLM's shape: token ids in, their text out."""
        fields = await self._fields(request, _DETOKENIZE)
        if fields.get("tokens") is None:
            raise InvalidRequest("tokens is missing.", param="tokens")
        return JSONResponse({"prompt": await self._intake.decode(fields["tokens"])})

    async def _fields(self, request: Request, checks: dict[str, Any]) -> dict[str, Any]:
        fields = decode_object(await read_json_body(request.scope, request.receive))
        check_known(fields, checks)
        if fields.get("model") is not None:
            check_model(fields, self._engine.name)
        return fields
