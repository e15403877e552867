"""`POST /v1/embeddings`, passed to upstreams that have it."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Receive, Scope, Send

from engine.protocol.body import decode_object
from engine.protocol.errors import (
    DeadlineExceeded,
    InvalidRequest,
    ServiceError,
)
from gateway.backends.base import Backend
from gateway.backends.openai_shapes import possible_tokens
from gateway.budgets.budgets import Budgets
from gateway.config import Config
from gateway.drain import Drain
from gateway.errors import with_tried
from gateway.estimate import input_tokens
from gateway.faces.endpoint import send_json
from gateway.ledger.machine import dollars
from gateway.lifeline import Lifeline
from gateway.middleware.limits import whole_body
from gateway.pipeline import Pipeline
from gateway.telemetry.metrics import Metrics, Spent
from gateway.visit import Visit, header, visit_of


class EmbeddingsFace:
    def __init__(
        self,
        config: Config,
        pipeline: Pipeline,
        drain: Drain,
        metrics: Metrics,
        budgets: Budgets,
    ) -> None:
        self._config = config
        self._pipeline = pipeline
        self._drain = drain
        self._metrics = metrics
        self._budgets = budgets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = parse(await whole_body(receive))
        visit = visit_of(scope)
        route = self._pipeline.match(body.get("model", ""), header(scope, b"x-fewer-route"), visit)
        backends = [self._pipeline.backend(name) for name in route.candidates]
        able = [backend for backend in backends if backend.capabilities.embeddings]
        if not able:
            raise InvalidRequest(
                f"The model behind {route.name!r} makes no embeddings; ask for one that does.",
                param="model",
            )
        lifeline = Lifeline(receive)
        with self._drain.admit(lifeline):
            async with lifeline:
                await self._budgets.admit_embeddings(body["input"], route, self._config, visit)
                answer = await self._embed_within(body, able, visit)
        self._metrics.count(route.name, visit.model, visit.spent)
        await send_json(
            send,
            answer,
            headers=[
                (b"x-fewer-route", route.name.encode()),
                (b"x-fewer-model", visit.model.encode()),
            ],
        )

    async def _embed_within(
        self, body: dict[str, Any], backends: list[Backend], visit: Visit
    ) -> dict[str, Any]:
        """The answer, with what was spent on it noted and settled: who leaves pays for all."""
        try:
            answer = await self._embed(body, backends, visit)
            visit.spent = _spent(body, answer)
            if (reservation := visit.reservation) is not None:
                await reservation.settle(visit.spent, self._dollars(visit))
            return answer
        except asyncio.CancelledError:
            visit.spent = _spent(body, {})
            raise
        finally:
            if visit.reservation is not None:
                visit.reservation.settle_later(visit.spent, self._dollars(visit))

    def _dollars(self, visit: Visit) -> float | None:
        return dollars(self._config.models[visit.model].price, visit.spent, machine_s=0.0)

    async def _embed(
        self, body: dict[str, Any], backends: list[Backend], visit: Visit
    ) -> dict[str, Any]:
        """The first answer that one of `backends` gives; a fault of the service moves on."""
        errors: list[ServiceError] = []
        for backend in backends:
            visit.model = backend.name
            try:
                async with asyncio.timeout(self._config.models[backend.name].timeout_s):
                    return await backend.embed(body)
            except ServiceError as error:
                errors.append(error)
            except TimeoutError:
                late = DeadlineExceeded(f"The model {backend.name} gave no answer in time.")
                errors.append(late)
        raise with_tried(errors[0], [backend.name for backend in backends])


def parse(data: bytes) -> dict[str, Any]:
    """The body, with what OpenAI requires of it checked: `input` and the type of `model`."""
    body = decode_object(data)
    if not isinstance(body.get("model", ""), str):
        raise InvalidRequest("model must be a string.", param="model")
    given = body.get("input")
    if not isinstance(given, str | list) or not given:
        raise InvalidRequest("input must be a string or an array, and not empty.", param="input")
    return body


def _spent(body: dict[str, Any], answer: dict[str, Any]) -> Spent:
    """As the upstream counted; an estimate where it did not."""
    usage = answer.get("usage")
    tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    if type(tokens) is int:
        return Spent(possible_tokens(tokens))
    return Spent(input_tokens(body["input"]), estimated=True)
