"""Keeps the children of `fewer serve` running, and ends them in order."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.protocol.errors import SetupError
from fewer.child import Child


@dataclass(slots=True)
class Backoff:
    """How long to wait before the next start of something that keeps ending.

    first_s:  after the first failure; each further one doubles it
    longest_s: and it never gets longer than this
    stable_s: having run for this long, it counts as having been well
    """

    first_s: float = 0.5
    longest_s: float = 30.0
    stable_s: float = 60.0
    _next_s: float = 0.0

    def after(self, ran_s: float) -> float:
        """Seconds to wait, now that it has ended after `ran_s`."""
        if ran_s >= self.stable_s or self._next_s == 0.0:
            self._next_s = self.first_s
        delay_s = self._next_s
        self._next_s = min(self.longest_s, delay_s * 2)
        return delay_s


class Supervisor:
    """Starts children together, restarts those that die, stops them one after the other.

    Children stop in the order given: the gateway comes first, since its running requests
    need the engines until they are done.
    """

    def __init__(
        self,
        children: Sequence[Child],
        say: Callable[[str], None],
        backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        self._children = children
        self._say = say
        self._backoff = backoff
        self._keepers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start all and wait until each is ready.

        Raises `SetupError` when one ends before that: what is wrong at the first start will be
        wrong at the next.
        """
        began = time.monotonic()
        for child in self._children:
            await child.start()
        await asyncio.gather(*(self._until_ready(child, began) for child in self._children))

    def keep(self) -> None:
        """From now on, restart whatever ends."""
        self._keepers = [asyncio.create_task(self._keep(child)) for child in self._children]

    async def stop(self, deadline_s: float) -> None:
        """End every child, each within `deadline_s` of being asked; nothing is restarted."""
        await self._let_go()
        for child in self._children:
            await child.stop(deadline_s)

    def hang_up(self) -> None:
        """Have the first child, the gateway, read its configuration again."""
        self._children[0].hang_up()

    def kill(self) -> None:
        """End every child at once; `stop` or `close` then sees them gone."""
        for child in self._children:
            child.kill()

    async def close(self) -> None:
        """End what is still running, without asking. Returns when all have gone."""
        await self._let_go()
        self.kill()
        for child in self._children:
            if child.running:
                await child.wait()

    async def _let_go(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    async def _until_ready(self, child: Child, began: float) -> None:
        status = await _ready_or_ended(child)
        if status is not None:
            raise SetupError(f"{child.name} {how_it_ended(status)} before it was ready; see above.")
        self._say(f"{child.name} is ready after {time.monotonic() - began:.1f} s")

    async def _keep(self, child: Child) -> None:
        backoff = self._backoff()
        while True:
            started = time.monotonic()
            status = await child.wait()
            delay_s = backoff.after(time.monotonic() - started)
            self._say(f"{child.name} {how_it_ended(status)}; starts again in {delay_s:g} s")
            await asyncio.sleep(delay_s)
            await child.start()
            await _ready_or_ended(child)
            if child.ready.is_set():
                self._say(f"{child.name} is back")


def how_it_ended(status: int) -> str:
    """In words, an exit status as `subprocess` gives it."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


async def _ready_or_ended(child: Child) -> int | None:
    """None once `child` is ready; its status when it ended first."""
    ready = asyncio.create_task(child.ready.wait())
    ended = asyncio.create_task(child.wait())
    done, _ = await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
    for task in (ready, ended):
        task.cancel()
    await asyncio.gather(ready, ended, return_exceptions=True)
    return None if ready in done else ended.result()
