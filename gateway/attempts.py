"""One call, tried on one model after another until one of them gives its first delta."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

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
from gateway.errors import of_failed, with_tried
from policies.request import Request


class Attempts(Stream):
    """A `Stream` that changes models for as long as the client cannot notice (R21).

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
        self._call = call
        self._names = list(names)
        self._backends = backends
        self._models = models
        self._fit = fit
        self._on_model = on_model
        self._tried: list[str] = []
        self._error: FewerError | None = None
        self._stream: Stream | None = None
        self._first_token_due_s = 0.0
        self._accepted = False
        self._begun = False
        self._ended = False

    async def start(self) -> None:
        """Returns once a model accepted the call. Raises the first error when none does."""
        while True:
            name = self._names[len(self._tried)]
            self._tried.append(name)
            self._on_model(name)
            try:
                self._stream = await self._generate(name)
            except FewerError as error:
                if not self._may_go_on(error):
                    raise self._final(error) from None
            else:
                return

    def receive(self) -> Awaitable[list[StreamEvent]]:
        if self._begun and self._stream is not None:
            return self._stream.receive()
        return self._before_first()

    async def aclose(self) -> None:
        self._ended = True
        if self._stream is not None:
            await self._stream.aclose()

    async def _generate(self, name: str) -> Stream:
        now_s = asyncio.get_running_loop().time()
        model = self._models[name]
        deadline_s = min(now_s + model.timeout_s, self._call.deadline_s or float("inf"))
        self._first_token_due_s = min(now_s + model.first_token_timeout_s, deadline_s)
        request = self._fit(self._call.request, name)
        call = replace(self._call, request=request, deadline_s=deadline_s)
        if len(self._tried) > 1:
            call = replace(call, id=f"{call.id}-{len(self._tried)}")
        try:
            async with asyncio.timeout_at(self._first_token_due_s):
                return await self._backends[name].generate(call)
        except TimeoutError:
            raise self._late() from None

    async def _before_first(self) -> list[StreamEvent]:
        """Events up to and with the first delta; a failure before it moves on to the next."""
        while not self._ended:
            events = await self._receive_in_time()
            failed = _failure_before_delta(events)
            if failed is None:
                self._begun = any(map(_is_delta, events))
                events = self._without_second_acceptance(events)
                if events:
                    return events
                continue
            if self._stream is not None:
                await self._stream.aclose()
            error = of_failed(failed)
            if not self._may_go_on(error):
                return self._fail(self._final(error))
            try:
                await self.start()
            except FewerError as last:
                return self._fail(last)
        return []

    async def _receive_in_time(self) -> list[StreamEvent]:
        if self._stream is None:
            raise RuntimeError("receive before start")
        try:
            async with asyncio.timeout_at(self._first_token_due_s):
                events = await self._stream.receive()
        except TimeoutError:
            return [Failed.of(self._call.id, self._late())]
        if not events:
            broken = UpstreamFailed(f"The model {self._tried[-1]} broke off without an answer.")
            return [Failed.of(self._call.id, broken)]
        return events

    def _may_go_on(self, error: FewerError) -> bool:
        """Note `error`, and say whether another model may be asked."""
        first = self._error is None
        if self._error is None:
            self._error = error
        if len(self._tried) == len(self._names):
            return False
        # A fallback that cannot hold the request is no better and no worse than one that is down.
        unfit = isinstance(error, InvalidRequest) and not first
        return unfit or isinstance(error, ServiceError)

    def _final(self, last: FewerError) -> FewerError:
        return with_tried(self._error or last, self._tried)

    def _fail(self, error: FewerError) -> list[StreamEvent]:
        self._ended = True
        return [Failed.of(self._call.id, error)]

    def _late(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"The model {self._tried[-1]} gave no first token in time.")

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
