"""B33: peers close, or reset, while their engine fails in the same moment; nobody else notices."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

from engine.protocol.frames import Generate
from engine.protocol.sampling import Sampling
from tests.engine.server.test_link import HI, HI_IDS, _reset, alone, linked, text_of
from tests.fakes.engine import LETTERS, fake_engine, serve, until

VISITS = 300
CROWD = 20
WAYS: tuple[int | str, ...] = (1000, 1001, "reset")


async def test_300_goodbyes_while_the_engine_fails(caplog: pytest.LogCaptureFixture) -> None:
    """In a third of the crowds a step fails while their peers leave."""
    failing = False
    unhandled: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, it: unhandled.append(it))

    def run(batch: object) -> None:
        nonlocal failing
        time.sleep(0.001)
        if failing:
            failing = False
            raise RuntimeError("the device is gone")

    async with serve(fake_engine(on_run=run)) as served:
        for crowd in range(VISITS // CROWD):
            visits = [visit(served, crowd * CROWD + number) for number in range(CROWD)]
            leaving = asyncio.gather(*visits)
            await until(lambda: served.engine.core.statistics().running > 0)
            failing = crowd % 3 == 0
            await leaving
            await until(served.drained)
            failing = False
        assert not served.app._link.links
        assert served.engine.core.alive
        failures = served.engine.core.statistics().choices_finished["failed"]
    assert failures >= VISITS // CROWD // 3
    assert not unhandled
    assert "never retrieved" not in caplog.text
    # The step's own fault is logged with its traceback, once each time, and nothing else is.
    faults = [record for record in caplog.records if record.exc_info]
    assert {str(record.exc_info[1]) for record in faults if record.exc_info} == {
        "the device is gone"
    }
    assert len(faults) <= VISITS // CROWD // 3


async def visit(served: Any, number: int) -> None:
    async with linked(served) as peer:
        await peer.send(Generate("r", messages=HI, max_tokens=2000))
        await asyncio.sleep((0.005, 0.05)[number % 2] * random.Random(number).random())
        match WAYS[number % 3]:
            case int(code):
                await peer.socket.close(code)
            case _:
                _reset(peer)


async def test_requests_on_another_socket_are_unaffected() -> None:
    greedy = Sampling(temperature=0, allowed_token_ids=LETTERS)
    async with serve(fake_engine(on_run=lambda batch: time.sleep(0.001))) as served:
        async with linked(served) as other:
            for round in range(3):
                id = f"r{round}"
                await other.send(Generate(id, messages=HI, sampling=greedy, max_tokens=100))
                await asyncio.gather(*(visit(served, number) for number in range(CROWD)))
                assert text_of(await other.answer(id)) == alone(HI_IDS, 100)
        await until(served.drained)
