"""A circuit breaker: a backend that keeps failing is left alone for a while, then probed.

Nygard, "Release It!" (2007). What counts is a `ServiceError`, whether it is raised or ends a
stream. `Overloaded` does not: a backend that says when to come back is at work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

from engine.protocol.errors import FewerError, Overloaded, ServiceError, Unavailable, from_code
from engine.protocol.frames import Failed, StreamEvent
from gateway.backends.base import Backend, Call, Stream

FAILURES_TO_OPEN = 5
OPEN_S = 5.0

State = Literal["closed", "open", "half-open"]


class Breaker:
    """Counts outcomes and says whether a call may be tried. No I/O.

    closed:    calls pass; consecutive failures are counted
    open:      calls are refused for `open_s`
    half-open: one call, the probe, passes; its outcome closes the breaker, or opens it again

    clock: seconds, monotonic
    """

    def __init__(
        self,
        *,
        failures_to_open: int = FAILURES_TO_OPEN,
        open_s: float = OPEN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._failures_to_open = failures_to_open
        self._open_s = open_s
        self._clock = clock
        self._failures = 0
        self._opened_s: float | None = None
        self._probing = False

    def __repr__(self) -> str:
        return f"<Breaker {self.state}, {self._failures} failures>"

    @property
    def state(self) -> State:
        if self._opened_s is None:
            return "closed"
        return "open" if self.retry_after_s > 0 else "half-open"

    @property
    def retry_after_s(self) -> float:
        """Seconds until a probe may be made; 0 when one may be made now."""
        if self._opened_s is None:
            return 0.0
        return max(0.0, self._opened_s + self._open_s - self._clock())

    def admit(self) -> bool:
        """May this call be tried? Admitted calls must report `succeeded`, `failed` or `left`."""
        state = self.state
        if state == "closed":
            return True
        if state == "open" or self._probing:
            return False
        self._probing = True
        return True

    def succeeded(self) -> None:
        self._failures = 0
        self._opened_s = None
        self._probing = False

    def failed(self) -> None:
        self._failures += 1
        if self._probing or (self._opened_s is None and self._failures >= self._failures_to_open):
            self._opened_s = self._clock()
        self._probing = False

    def left(self) -> None:
        """The call ended without saying anything about the backend."""
        self._probing = False


class GuardedBackend(Backend):
    """`inner` behind a breaker."""

    def __init__(self, inner: Backend, breaker: Breaker | None = None) -> None:
        self.inner = inner
        self.name = inner.name
        self.capabilities = inner.capabilities
        self._breaker = breaker or Breaker()

    def __repr__(self) -> str:
        return f"<GuardedBackend {self.name} {self._breaker!r}>"

    async def generate(self, call: Call) -> Stream:
        self._admit()
        try:
            stream = await self.inner.generate(call)
        except BaseException as error:
            self._note(error)
            raise
        return _GuardedStream(self._breaker, stream)

    async def embed(self, body: dict[str, Any]) -> dict[str, Any]:
        self._admit()
        try:
            answer = await self.inner.embed(body)
        except BaseException as error:
            self._note(error)
            raise
        self._breaker.succeeded()
        return answer

    async def ready(self) -> bool:
        return self._breaker.state != "open" and await self.inner.ready()

    async def aclose(self) -> None:
        await self.inner.aclose()

    def _admit(self) -> None:
        if not self._breaker.admit():
            raise Unavailable(
                f"The backend of {self.name} keeps failing and is left alone for now.",
                retry_after_s=max(1.0, self._breaker.retry_after_s),
            )

    def _note(self, error: BaseException) -> None:
        note(self._breaker, error)


class _GuardedStream(Stream):
    """Reports the first sign of life as success, and a failed end as failure."""

    def __init__(self, breaker: Breaker, inner: Stream) -> None:
        self._breaker = breaker
        self._inner = inner
        self._reported = False

    async def receive(self) -> list[StreamEvent]:
        events = await self._inner.receive()
        if events:
            last = events[-1]
            if isinstance(last, Failed):
                self._reported = True
                note(self._breaker, from_code(last.code, last.message))
            elif not self._reported:
                self._reported = True
                self._breaker.succeeded()
        return events

    async def aclose(self) -> None:
        if not self._reported:
            self._reported = True
            self._breaker.left()
        await self._inner.aclose()


def note(breaker: Breaker, error: BaseException) -> None:
    """Report what `error` says about the backend: a refusal of the request is a sign of life."""
    if isinstance(error, ServiceError) and not isinstance(error, Overloaded):
        breaker.failed()
    elif isinstance(error, FewerError):
        breaker.succeeded()
    else:
        breaker.left()
