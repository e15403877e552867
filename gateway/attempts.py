"""One call, tried on one model after another until one of them gives its first delta."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from msgspec.structs import replace

from engine.protocol.errors import (
    DeadlineExceeded,
    FewerError,
    InvalidRequest,
    ServiceError,
    UpstreamFailed,
)
from engine.protocol.frames import Accepted, Event, Failed, StreamEvent
from gateway.backends.base import Backend, Call, Stream
from gateway.config import ModelConfig
from gateway.drafting import drafted
from gateway.errors import of_failed, with_tried
from gateway.landing import LandingStream
from gateway.shaping import fitted
from policies.request import Request


class Attempts:
    """Changes models for as long as the client cannot notice (R21).

    Another model is asked only after a fault of the service's, never after one of the request,
    and never once a delta was passed on. When all have failed, the error is the first one's,
    with the list of those tried: what a later one says would hide the cause (B23).

    fit:      the request as one of the models is to get it
    on_model: told the name of each model that is tried
    """

    def __init__(
        self,
        call: Call,
        names: Sequence[str],
        backends: dict[str, Backend],
        models: dict[str, ModelConfig],
        fit: Callable[[Request, str], Request],
        on_model: Callable[[str], None],
    ) -> None:
        self.id = call.id
        self.first_token_due_s = 0.0
        self._call = call
        self._names = list(names)
        self._backends = backends
        self._models = models
        self._fit = fit
        self._on_model = on_model
        self._tried: list[str] = []
        self._error: FewerError | None = None

    async def start(self) -> Stream:
        """Returns once a model accepted the call. Raises the first error when none does."""
        return _TriedStream(self, await self.next())

    async def next(self) -> Stream:
        """The stream of the next model that accepts the call. Raises when none does."""
        while True:
            name = self._names[len(self._tried)]
            self._tried.append(name)
            self._on_model(name)
            try:
                return await self._generate(name)
            except FewerError as error:
                if not self.may_go_on(error):
                    raise self.final(error) from None

    def may_go_on(self, error: FewerError) -> bool:
        """Note `error`, and say whether another model may be asked."""
        first = self._error is None
        if self._error is None:
            self._error = error
        if len(self._tried) == len(self._names):
            return False
        # A fallback that cannot hold the request is no better and no worse than one that is down.
        unfit = isinstance(error, InvalidRequest) and not first
        return unfit or isinstance(error, ServiceError)

    def final(self, last: FewerError) -> FewerError:
        """What the client is told when `last` was the last error."""
        return with_tried(self._error or last, self._tried)

    def late(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"The model {self._tried[-1]} gave no first token in time.")

    def broken(self) -> UpstreamFailed:
        return UpstreamFailed(f"The model {self._tried[-1]} broke off without an answer.")

    async def _generate(self, name: str) -> Stream:
        now_s = asyncio.get_running_loop().time()
        model = self._models[name]
        deadline_s = min(now_s + model.timeout_s, self._call.deadline_s or float("inf"))
        self.first_token_due_s = min(now_s + model.first_token_timeout_s, deadline_s)
        backend = self._backends[name]
        request = fitted(self._fit(self._call.request, name), backend.capabilities)
        request = drafted(request, self._call.draft, backend.capabilities)
        call = replace(self._call, request=request, deadline_s=deadline_s)
        if len(self._tried) > 1:
            call = replace(call, id=f"{call.id}-{len(self._tried)}")
        try:
            async with asyncio.timeout_at(self.first_token_due_s):
                stream = await backend.generate(call)
        except TimeoutError:
            raise self.late() from None
        soft = request.soft_max_tokens
        if soft is None or backend.capabilities.landing:
            return stream
        return LandingStream(call, soft, stream)


class _TriedStream(Stream):
    """The stream of the model that accepted, or of a later one if that fails before its first
    delta."""

    def __init__(self, attempts: Attempts, stream: Stream) -> None:
        self._attempts = attempts
        self._stream = stream
        self._accepted = False
        self._begun = False
        self._ended = False

    def receive(self) -> Coroutine[Any, Any, list[StreamEvent]]:
        return self._stream.receive() if self._begun else self._before_first()

    async def aclose(self) -> None:
        self._ended = True
        await self._stream.aclose()

    async def _before_first(self) -> list[StreamEvent]:
        """Events up to and with the first delta; a failure before it moves on to the next."""
        while not self._ended:
            events = await self._receive_in_time()
            failed = _failure_before_delta(events)
            if failed is not None:
                await self._stream.aclose()
                events = await self._instead_of(of_failed(failed))
            self._begun = any(map(_is_delta, events))
            if events := self._without_second_acceptance(events):
                return events
        return []

    async def _instead_of(self, error: FewerError) -> list[StreamEvent]:
        """The terminal that `error` leads to; nothing where another model has taken over."""
        try:
            if not self._attempts.may_go_on(error):
                raise self._attempts.final(error)
            self._stream = await self._attempts.next()
        except FewerError as last:
            self._ended = True
            return [Failed.of(self._attempts.id, last)]
        return []

    async def _receive_in_time(self) -> list[StreamEvent]:
        try:
            async with asyncio.timeout_at(self._attempts.first_token_due_s):
                events = await self._stream.receive()
        except TimeoutError:
            return [Failed.of(self._attempts.id, self._attempts.late())]
        return events or [Failed.of(self._attempts.id, self._attempts.broken())]

    def _without_second_acceptance(self, events: list[StreamEvent]) -> list[StreamEvent]:
        if self._accepted:
            return [event for event in events if not isinstance(event, Accepted)]
        self._accepted = any(isinstance(event, Accepted) for event in events)
        return events


def _is_delta(event: StreamEvent) -> bool:
    """Would the client notice it?"""
    return isinstance(event, Event)


def _failure_before_delta(events: list[StreamEvent]) -> Failed | None:
    for event in events:
        if _is_delta(event):
            return None
        if isinstance(event, Failed):
            return event
    return None
