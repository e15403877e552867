"""Python's garbage collector, run when nobody waits for it.

A collection stops every stream of the process at once: 16 to 36 ms with some hundred of them,
which is the tail of the inter-token latency. What is there after start never becomes garbage,
so it is frozen; the rest is collected when the process is idle, and now and then regardless.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable

LOOK_EVERY_S = 1.0
COLLECT_AT_LEAST_EVERY_S = 60.0
WORTHWHILE_OBJECTS = 5_000
"""Containers made and not freed since the last collection, below which one is not worth it."""


@contextlib.asynccontextmanager
async def collecting_when_idle(is_idle: Callable[[], bool]) -> AsyncIterator[None]:
    """Take the collector over for as long as the block lasts."""
    gc.collect()
    gc.freeze()
    gc.disable()
    collector = asyncio.create_task(_collect(is_idle))
    try:
        yield
    finally:
        collector.cancel()
        gc.enable()
        gc.unfreeze()


async def _collect(is_idle: Callable[[], bool]) -> None:
    loop = asyncio.get_running_loop()
    last_s = loop.time()
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        if gc.get_count()[0] < WORTHWHILE_OBJECTS:
            continue
        if is_idle() or loop.time() - last_s >= COLLECT_AT_LEAST_EVERY_S:
            gc.collect()
            last_s = loop.time()
