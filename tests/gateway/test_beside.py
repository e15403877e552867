"""Work beside the event loop: what it keeps, what it drops, and that the loop goes on."""

from __future__ import annotations

import asyncio
import threading

import pytest

from engine.protocol.errors import Overloaded
from gateway.beside import MAX_WAITING, Beside


async def test_the_loop_goes_on() -> None:
    beside, told = Beside(), threading.Event()
    waiting = asyncio.create_task(beside.run(lambda: told.wait(30)))
    await asyncio.sleep(0)
    # Would never be reached if the loop waited for the work.
    told.set()
    assert await waiting


async def test_what_fails_there_fails_here() -> None:
    with pytest.raises(ZeroDivisionError):
        await Beside().run(lambda: 1 // 0)


async def test_no_more_waits_than_there_is_room_for() -> None:
    beside, told = Beside(), threading.Event()
    waiting = [asyncio.create_task(beside.run(lambda: told.wait(30))) for _ in range(MAX_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await beside.run(lambda: True)
    told.set()
    assert all(await asyncio.gather(*waiting))
    assert await beside.run(lambda: True)


async def test_who_left_is_not_worked_for() -> None:
    beside, told, done = Beside(), threading.Event(), []
    first = asyncio.create_task(beside.run(lambda: told.wait(30)))
    second = asyncio.create_task(beside.run(lambda: done.append("second")))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    told.set()
    assert await first
    await beside.run(lambda: done.append("third"))
    assert done == ["third"]
