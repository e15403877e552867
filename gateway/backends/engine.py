"""An engine of ours behind its multiplexed WebSocket."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from engine.protocol.errors import DeadlineExceeded, FewerError, Overloaded, from_code
from engine.protocol.frames import (
    Failed,
    Pause,
    Resume,
    StreamEvent,
)
from engine.protocol.openai import generate_frame
from gateway.backends.base import Backend, Call, Capabilities, Stream, is_terminal
from gateway.backends.fields import to_fields
from gateway.backends.link import EngineLink, Timing
from gateway.backends.sizes import size_bytes

PAUSE_BYTES = 64 * 1024
HARD_BYTES = 1024 * 1024
DEADLINE_GRACE_S = 1.0
"""The engine ends a request at its deadline; if it does not, we do, this much later."""


class EngineBackend(Backend):
    """One engine, over one connection a process, which is made at the first use.

    url:   ws://host:port/v1/engine; from the configuration only
    token: the secret that both ends share
    """

    def __init__(self, name: str, url: str, token: str, *, timing: Timing | None = None) -> None:
        self.name = name
        self.capabilities = Capabilities(landing=True, prediction=True, structured=True)
        self._link = EngineLink(name, url, token, timing or Timing())

    def __repr__(self) -> str:
        return f"<EngineBackend {self._link!r}>"

    async def generate(self, call: Call) -> Stream:
        loop = asyncio.get_running_loop()
        fields = to_fields(call.request)
        await self._link.wait_up(call.deadline_s)
        timeout_ms = None
        if call.deadline_s is not None:
            timeout_ms = int((call.deadline_s - loop.time()) * 1000)
            if timeout_ms <= 0:
                raise DeadlineExceeded("The request's time ran out.")
        frame = generate_frame(
            call.request.surface,
            call.id,
            fields,
            tenant=call.tenant,
            salt=call.salt,
            weight=call.weight,
            priority=call.priority,
            timeout_ms=timeout_ms,
            expected_tokens=call.expected_tokens,
            traceparent=call.traceparent,
        )
        if call.request.clamp:
            frame = replace(frame, clamp=True)
        if (soft := call.request.soft_max_tokens) is not None:
            frame = replace(frame, soft_max_tokens=soft)
        stream = EngineStream(self._link, call.id, call.deadline_s)
        self._link.open(frame, stream)
        try:
            await stream.accepted()
        except BaseException:
            await stream.aclose()
            raise
        return stream

    async def ready(self) -> bool:
        self._link.start()
        return self._link.is_up

    async def aclose(self) -> None:
        await self._link.aclose()


class EngineStream(Stream):
    """What has arrived for one call and was not read yet.

    Past PAUSE_BYTES the engine is asked to pause the request, until the reader has caught up;
    should as much as HARD_BYTES arrive nevertheless, the stream ends with an error.
    """

    def __init__(self, link: EngineLink, id: str, deadline_s: float | None) -> None:
        self._link = link
        self._id = id
        self._loop = asyncio.get_running_loop()
        self._events: list[StreamEvent] = []
        self._bytes = 0
        self._paused = False
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        if deadline_s is not None:
            self._timer = self._loop.call_at(deadline_s + DEADLINE_GRACE_S, self._expire)

    async def accepted(self) -> None:
        """Returns once the engine has accepted the call, which stays to be received.

        Raises what the engine refused it with.
        """
        await self._news()
        first = self._events[0]
        if isinstance(first, Failed):
            raise from_code(
                first.code, first.message, param=first.param, retry_after_s=first.retry_after_s
            )

    async def receive(self) -> list[StreamEvent]:
        if not (self._events or self._ended):
            await self._news()
        events, self._events = self._events, []
        self._bytes = 0
        if self._paused and not self._ended:
            self._paused = False
            self._link.post(Resume(self._id))
        return events

    async def aclose(self) -> None:
        self._events.clear()
        self._end()

    def deliver(self, event: StreamEvent) -> None:
        """Called by the link for everything that comes for this id."""
        self._events.append(event)
        self._bytes += size_bytes(event)
        if is_terminal(event):
            self._end()
        elif self._bytes > PAUSE_BYTES:
            self._slow_down()
        self._wake()

    def _slow_down(self) -> None:
        if self._bytes > HARD_BYTES:
            self._fail(Overloaded("The answer was cut: its reader is too slow."))
        elif not self._paused:
            self._paused = True
            self._link.post(Pause(self._id))

    def _news(self) -> asyncio.Future[None]:
        """Done with the next event. Only to be asked for while there is none."""
        self._waiter = self._loop.create_future()
        return self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _expire(self) -> None:
        self._fail(DeadlineExceeded("The request's time ran out."))

    def _fail(self, error: FewerError) -> None:
        self._events.append(Failed.of(self._id, error))
        self._end()

    def _end(self) -> None:
        """Nothing more is taken. Cancels the request, which does nothing if it has ended."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        self._link.cancel(self._id)
        self._wake()
