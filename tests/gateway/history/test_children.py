"""Generations in the background: how many, how often, and when they end."""

from __future__ import annotations

import asyncio

import pytest

from engine.protocol.errors import Cancelled, Overloaded
from gateway.history import children as module
from gateway.history.children import FIRST_PAUSE_S, LONGEST_PAUSE_S, MAX_RUNNING, Children
from gateway.telemetry.metrics import Metrics
from tests.fakes.clock import FakeClock
from tests.fakes.serving import until


class Asked:
    """Says `useful`, raises `error`, or waits for `go`."""

    def __init__(self, *, useful: bool = True, error: BaseException | None = None) -> None:
        self.useful, self.error = useful, error
        self.go = asyncio.Event()
        self.go.set()
        self.begun = self.ended = 0

    async def __call__(self) -> bool:
        self.begun += 1
        try:
            await self.go.wait()
            if self.error is not None:
                raise self.error
            return self.useful
        finally:
            self.ended += 1


class Run:
    def __init__(self) -> None:
        self.metrics = Metrics()
        self.clock = FakeClock()
        self.children = Children(self.metrics, clock=self.clock)

    async def one(self, asked: Asked, conversation: str = "c") -> bool:
        """Begin it and wait until it has ended; false where it was not begun."""
        if not self.children.begin("chat", conversation, asked):
            return False
        await until(lambda: "<Children 0 running" in repr(self.children))
        return True

    def count(self, result: str) -> int:
        name = f'fewer_child_generations_total{{result="{result}",route="chat"}} '
        found = [line for line in self.metrics.text().decode().splitlines() if name in line]
        return int(float(found[0].split()[-1])) if found else 0


async def test_a_conversation_has_one_at_a_time() -> None:
    run, asked = Run(), Asked()
    asked.go.clear()
    assert run.children.begin("chat", "c", asked)
    assert not run.children.begin("chat", "c", asked)
    assert run.children.begin("chat", "d", asked)
    asked.go.set()
    assert await run.one(asked, "e")
    assert asked.begun == 3
    assert run.count("kept") == 3


async def test_the_process_has_few_and_queues_none() -> None:
    run, asked = Run(), Asked()
    asked.go.clear()
    begun = [run.children.begin("chat", number, asked) for number in range(MAX_RUNNING + 3)]
    assert begun.count(True) == MAX_RUNNING
    asked.go.set()
    await until(lambda: asked.ended == MAX_RUNNING)
    assert await run.one(asked, "later")
    assert asked.begun == MAX_RUNNING + 1


@pytest.mark.parametrize(
    ("asked", "result"),
    [
        (lambda: Asked(useful=False), "useless"),
        (lambda: Asked(error=Overloaded("Too much.")), "failed"),
        (lambda: Asked(error=Cancelled("Gone.")), "cancelled"),
    ],
)
async def test_after_a_failure_the_conversation_is_left_alone_longer_each_time(
    asked: type[Asked], result: str
) -> None:
    run = Run()
    pause_s = FIRST_PAUSE_S
    for times in range(8):
        assert await run.one(asked())
        assert run.count(result) == times + 1
        assert await run.one(Asked(), f"other {times}")
        run.clock.now_s += pause_s - 1
        assert not await run.one(asked())
        run.clock.now_s += 1
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    assert pause_s == LONGEST_PAUSE_S
    assert await run.one(Asked())
    assert await run.one(asked())
    run.clock.now_s += FIRST_PAUSE_S
    assert await run.one(Asked())


async def test_no_more_failures_are_remembered_than_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_PAUSED", 2)
    run = Run()
    for number in range(5):
        await run.one(Asked(useful=False), f"{number}")
    assert repr(run.children) == "<Children 0 running, 2 paused>"


async def test_what_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEADLINE_S", 0.001)
    run, asked = Run(), Asked()
    asked.go.clear()
    assert await run.one(asked)
    assert asked.ended == 1
    assert run.count("failed") == 1


async def test_the_end_of_the_process_ends_them_and_none_is_begun_after() -> None:
    run, asked = Run(), Asked()
    asked.go.clear()
    assert run.children.begin("chat", "c", asked)
    await until(lambda: asked.begun == 1)
    await run.children.aclose()
    assert asked.ended == 1
    assert run.count("cancelled") == 1
    assert not run.children.begin("chat", "d", asked)
    await run.children.aclose()


async def test_a_fault_of_ours_is_told_and_pauses(caplog: pytest.LogCaptureFixture) -> None:
    run = Run()
    assert await run.one(Asked(error=ZeroDivisionError()))
    assert "a fault while a record was written" in caplog.text
    assert not await run.one(Asked())
