"""Exchanging the configuration of a running gateway, whole or not at all.

One process looks at the file: the gateway itself or, where it has several workers, their parent,
which then has each of them read it by SIGHUP. Nothing is taken from a file that is wrong. A
request is answered under the configuration that it began with.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from engine.protocol.errors import ConfigError
from gateway.changes import Applicable, applicable
from gateway.config import Config
from gateway.source import Source

LOOK_EVERY_S = 0.5
"""A change must have rested for one look, so it holds after a second at the latest."""

_log = logging.getLogger("fewer.reload")


class Live:
    """The configuration that holds, and where the next one comes from. Travels by pickle.

    config: as it holds now
    first:  as the file said at the start; by default `config`
    """

    def __init__(self, config: Config, source: Source, first: Config | None = None) -> None:
        self.config = config
        self.source = source
        self._first = first or config

    @property
    def is_alone(self) -> bool:
        """Does the process that answers requests look at the file itself?"""
        return self.config.server.workers == 1

    def read(self) -> Applicable:
        """What of the file can hold from now on. Raises `ConfigError` when it is wrong."""
        return applicable(self.source.load(), self.config, self._first)

    def tell(self, found: Applicable) -> None:
        """Log that `found` holds now, and what of it does not."""
        name = self.source.path.name
        _log.info("%s was read again and holds for new requests", name)
        if found.postponed:
            _log.warning("%s: holds only after a restart: %s", name, ", ".join(found.postponed))

    def complain(self, error: ConfigError) -> None:
        """Log what is wrong with the file: its name, the line and the key."""
        _log.error("%s The configuration stays as it was.", error.message)


@asynccontextmanager
async def following(live: Live, exchange: Callable[[Config], None]) -> AsyncIterator[None]:
    """While the block lasts, `exchange` gets each new configuration that is right.

    A process with a terminal is left alone by SIGHUP: there it means that the terminal has gone.
    """
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    hears = not (live.is_alone and os.isatty(0))
    if hears:
        loop.add_signal_handler(signal.SIGHUP, asked.set)
    follower = asyncio.create_task(_follow(live, exchange, asked))
    follower.add_done_callback(_report)
    try:
        yield
    finally:
        follower.cancel()
        if hears:
            loop.remove_signal_handler(signal.SIGHUP)


async def _follow(live: Live, exchange: Callable[[Config], None], asked: asyncio.Event) -> None:
    while True:
        try:
            async with asyncio.timeout(LOOK_EVERY_S if live.is_alone else None):
                await asked.wait()
        except TimeoutError:
            if not live.source.has_changed():
                continue
        asked.clear()
        await _reload(live, exchange)


async def _reload(live: Live, exchange: Callable[[Config], None]) -> None:
    try:
        # Parsing YAML takes milliseconds, in which no stream would move.
        found = await asyncio.to_thread(live.read)
        exchange(found.config)
    except ConfigError as error:
        live.complain(error)
        return
    live.config = found.config
    if live.is_alone:
        live.tell(found)


def _report(follower: asyncio.Task[None]) -> None:
    """It only ends by cancellation; anything else is a fault of ours."""
    if not follower.cancelled() and (error := follower.exception()) is not None:
        _log.critical("the configuration is not followed any more: %r", error, exc_info=error)
