"""Work that can be ended from outside, and what is ended at the end of a drain."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable

import pytest
from starlette.types import Message

from engine.protocol.errors import Cancelled, Overloaded, Unavailable
from gateway.drain import Drain
from gateway.lifeline import Lifeline


class Client:
    """A client that stays until `leave`."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.before: list[Message] = []

    async def receive(self) -> Message:
        if self.before:
            return self.before.pop()
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def wait_for_ever(lifeline: Lifeline, then: Callable[[], object]) -> None:
    async with lifeline:
        then()
        await asyncio.Event().wait()


async def test_a_disconnect_ends_the_block() -> None:
    client = Client()
    with pytest.raises(Cancelled):
        await wait_for_ever(Lifeline(client.receive), client.gone.set)


async def test_what_else_is_received_changes_nothing() -> None:
    client = Client()
    client.before = [{"type": "http.request", "body": b"", "more_body": False}] * 3
    with pytest.raises(Cancelled):
        await wait_for_ever(Lifeline(client.receive), client.gone.set)


async def test_the_first_reason_counts() -> None:
    lifeline = Lifeline(Client().receive)

    def cut_twice() -> None:
        lifeline.cut(Overloaded("first"))
        lifeline.cut(Unavailable("second"))

    with pytest.raises(Overloaded):
        await wait_for_ever(lifeline, cut_twice)


async def test_after_the_block_nothing_can_be_cut() -> None:
    client = Client()
    async with Lifeline(client.receive) as lifeline:
        pass
    client.gone.set()
    lifeline.cut(Overloaded("late"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_an_error_inside_is_not_replaced() -> None:
    lifeline = Lifeline(Client().receive)

    def cut_and_fail() -> None:
        lifeline.cut(Overloaded("cut"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await wait_for_ever(lifeline, cut_and_fail)
    # The cancellation that was asked for meets the next await, as `asyncio.timeout` has it.
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)


async def test_who_cancels_the_task_is_obeyed() -> None:
    started = asyncio.Event()

    async def work() -> None:
        async with Lifeline(Client().receive) as lifeline:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                lifeline.cut(Overloaded("at the same time"))

    task = asyncio.create_task(work())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_drain_admits_no_more_and_cuts_the_rest() -> None:
    drain = Drain(deadline_s=0.01)
    lifeline = Lifeline(Client().receive)

    def start() -> None:
        assert repr(drain) == "<Drain open, 1 running>"
        assert drain.running == 1
        drain.start()
        drain.start()
        with pytest.raises(Unavailable), drain.admit(Lifeline(Client().receive)):
            pass

    with pytest.raises(Unavailable, match="shutting down"), drain.admit(lifeline):
        await wait_for_ever(lifeline, start)
    assert repr(drain) == "<Drain draining, 0 running>"


async def test_an_ended_block_leaves_nothing_to_the_garbage_collector() -> None:
    lifeline = Lifeline(Client().receive)
    gc.disable()
    try:
        async with lifeline:
            await asyncio.sleep(0)  # the watcher begins
        await asyncio.sleep(0)  # and ends
        left = weakref.ref(lifeline)
        del lifeline
        assert left() is None
    finally:
        gc.enable()
