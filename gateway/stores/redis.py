"""One way to ask Redis: within a deadline, and so that a cancelled caller harms nobody.

redis-py's own retries are off: with them a timeout of 0.3 s takes seven (TESTING.md). A command
runs in a task of its own, which its caller's cancellation does not reach: it ends by itself, or at
the deadline with its connection, so that no reply is ever left on one for the next (B29).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from engine.protocol.errors import DeadlineExceeded, Overloaded, Unavailable

MAX_CONNECTIONS = 32
MAX_RUNNING = 512
"""Commands at once. More wait for connections in vain, and would only fill memory."""

RETRY_AFTER_S = 2.0


class RedisClient:
    """Connects at the first use, and again after every failure.

    url:        redis://, rediss:// or unix://, as redis-py reads it; may hold a password
    deadline_s: for a command, with waiting for a connection and connecting
    """

    def __init__(self, url: str, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=deadline_s,
            socket_timeout=deadline_s,
            socket_connect_timeout=deadline_s,
            retry=Retry(NoBackoff(), 0),
            driver_info=None,
        )
        self.commands: Redis = Redis.from_pool(self._pool)
        self._running: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"<RedisClient {len(self._running)} running>"

    async def run(self, command: Callable[[], Awaitable[Any]]) -> Any:
        """The reply to what `command` asks of `commands`.

        Raises `Unavailable`, `Overloaded` and, at the deadline, `DeadlineExceeded`: then nobody
        knows whether Redis has done, or will yet do, what it was asked.
        """
        if len(self._running) >= MAX_RUNNING:
            raise Overloaded("Redis has too much to do.", retry_after_s=RETRY_AFTER_S)
        task = asyncio.create_task(self._within_deadline(command))
        self._running.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        """End what is running, and close every connection. Safe to call twice."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        await self.commands.aclose()
        await self._pool.disconnect()

    async def _within_deadline(self, command: Callable[[], Awaitable[Any]]) -> Any:
        try:
            async with asyncio.timeout(self._deadline_s):
                return await command()
        except TimeoutError:
            raise DeadlineExceeded("Redis did not answer in time.") from None
        except (RedisError, OSError) as error:
            # What redis-py says may hold the address, which may hold the password.
            reason = type(error).__name__
            raise Unavailable(
                f"Redis cannot be used: {reason}.", retry_after_s=RETRY_AFTER_S
            ) from error

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may be left to be told
