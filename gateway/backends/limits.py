"""A bound on how many calls of one backend run at once, with a short fair queue before it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import Any

from engine.protocol.errors import DeadlineExceeded, Overloaded
from engine.protocol.frames import StreamEvent
from gateway.backends.base import Backend, Call, Stream, is_terminal

MAX_WAIT_S = 30.0
WAITING_PER_SLOT = 4
_SMOOTHING = 0.1


class Slots:
    """Who may run, and who waits. Tenants take turns, so that none can fill the queue for all.

    Decides without waiting; the waiting is the caller's. Every slot that was taken must be
    given back exactly once.
    """

    def __init__(self, total: int, max_waiting: int) -> None:
        self.total = total
        self.max_waiting = max_waiting
        self.running = 0
        self.waiting = 0
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def take(self) -> bool:
        """Take a slot, if one is free and nobody waits for it."""
        if self.running >= self.total or self.waiting:
            return False
        self.running += 1
        return True

    def join(self, tenant: str) -> asyncio.Future[None]:
        """Stand in the tenant's line. The future is done when a slot was taken for it."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(tenant, deque()).append(turn)
        self.waiting += 1
        return turn

    def leave(self, tenant: str, turn: asyncio.Future[None]) -> None:
        """Stop waiting; a slot that came at the last moment is given back."""
        if turn.done() and not turn.cancelled():
            self.give_back()
            return
        turn.cancel()
        self.waiting -= 1
        self._queues[tenant].remove(turn)
        if not self._queues[tenant]:
            del self._queues[tenant]

    def give_back(self) -> None:
        """Free a slot, or hand it to the tenant whose turn it is."""
        if not self._queues:
            self.running -= 1
            return
        tenant, queue = next(iter(self._queues.items()))
        queue.popleft().set_result(None)
        self.waiting -= 1
        if queue:
            self._queues.move_to_end(tenant)
        else:
            del self._queues[tenant]


class LimitedBackend(Backend):
    """At most `max_concurrency` calls of `inner` at once.

    More wait, each for `max_wait_s` or until its deadline; then, or when too many wait already,
    they are refused with `Overloaded` and the time after which a slot is likely to be free.
    """

    def __init__(
        self,
        inner: Backend,
        max_concurrency: int,
        *,
        max_waiting: int | None = None,
        max_wait_s: float = MAX_WAIT_S,
    ) -> None:
        self.inner = inner
        self.name = inner.name
        self.capabilities = inner.capabilities
        if max_waiting is None:
            max_waiting = WAITING_PER_SLOT * max_concurrency
        self._slots = Slots(max_concurrency, max_waiting)
        self._max_wait_s = max_wait_s
        self._usual_s = 1.0

    def __repr__(self) -> str:
        slots = self._slots
        return (
            f"<LimitedBackend {self.name} {slots.running}/{slots.total} running, "
            f"{slots.waiting} waiting>"
        )

    async def generate(self, call: Call) -> Stream:
        await self._enter(call.tenant, call.deadline_s)
        began_s = asyncio.get_running_loop().time()
        try:
            stream = await self.inner.generate(call)
        except BaseException:
            self._slots.give_back()
            raise
        return _LimitedStream(self, stream, began_s)

    async def embed(self, body: dict[str, Any]) -> dict[str, Any]:
        await self._enter("", None)
        try:
            return await self.inner.embed(body)
        finally:
            self._slots.give_back()

    async def ready(self) -> bool:
        return await self.inner.ready()

    async def aclose(self) -> None:
        await self.inner.aclose()

    def leave(self, began_s: float) -> None:
        """A call that began then has ended."""
        took_s = asyncio.get_running_loop().time() - began_s
        self._usual_s += _SMOOTHING * (took_s - self._usual_s)
        self._slots.give_back()

    async def _enter(self, tenant: str, deadline_s: float | None) -> None:
        """Returns with a slot taken."""
        slots = self._slots
        if slots.take():
            return
        if slots.waiting >= slots.max_waiting:
            raise self._overloaded()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._max_wait_s
        late = deadline_s is not None and deadline_s < until_s
        turn = slots.join(tenant)
        try:
            async with asyncio.timeout_at(deadline_s if late else until_s):
                await turn
        except TimeoutError:
            slots.leave(tenant, turn)
            if late:
                raise DeadlineExceeded(
                    f"The request's time ran out while it waited for {self.name}."
                ) from None
            raise self._overloaded() from None
        except BaseException:
            slots.leave(tenant, turn)
            raise

    def _overloaded(self) -> Overloaded:
        slots = self._slots
        wait_s = self._usual_s * (slots.waiting + 1) / slots.total
        return Overloaded(
            f"The model {self.name} is busy with {slots.total} requests.",
            retry_after_s=max(1.0, wait_s),
        )


class _LimitedStream(Stream):
    """Gives its slot back with the terminal, or when it is closed before."""

    def __init__(self, backend: LimitedBackend, inner: Stream, began_s: float) -> None:
        self._backend = backend
        self._inner = inner
        self._began_s = began_s
        self._holds = True

    async def receive(self) -> list[StreamEvent]:
        events = await self._inner.receive()
        if not events or is_terminal(events[-1]):
            self._let_go()
        return events

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._holds:
            self._holds = False
            self._backend.leave(self._began_s)
