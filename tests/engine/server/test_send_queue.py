"""Frames on their way to one peer: order, the crowded signal, and a peer that reads nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import engine.server.send_queue
from engine.protocol.frames import Event, Events, Pong, decode_from_engine
from engine.server.send_queue import PeerStalled, SendQueue


class Wire:
    """An ASGI `send` that can be blocked."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.open = asyncio.Event()
        self.open.set()

    async def send(self, message: Any) -> None:
        await self.open.wait()
        assert message["type"] == "websocket.send"
        self.sent.append(decode_from_engine(message["text"]))


def frame(number: int, size: int = 0) -> Events:
    return Events([Event("r", number, text="é" * (size // 2))])


async def test_frames_leave_in_order_and_then_it_is_idle() -> None:
    wire = Wire()
    queue = SendQueue(wire.send, lambda crowded: None)
    assert queue.idle.is_set()
    task = asyncio.create_task(queue.run())
    frames = [frame(i, 10) for i in range(100)]
    for one in frames:
        queue.put(one)
    assert not queue.idle.is_set()
    await queue.idle.wait()
    assert wire.sent == frames
    queue.put(Pong())
    await queue.idle.wait()
    assert wire.sent[-1] == Pong()
    task.cancel()


async def test_crowded_is_told_once_and_again_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine.server.send_queue, "PAUSE_BYTES", 10_000)
    monkeypatch.setattr(engine.server.send_queue, "RESUME_BYTES", 2_000)
    told: list[bool] = []
    wire = Wire()
    wire.open.clear()
    queue = SendQueue(wire.send, told.append)
    task = asyncio.create_task(queue.run())
    for number in range(12):
        queue.put(frame(number, 1000))
    assert told == [True]
    wire.open.set()
    await queue.idle.wait()
    assert told == [True, False]
    assert len(wire.sent) == 12
    task.cancel()


async def test_a_peer_that_reads_nothing_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.server.send_queue, "STALL_S", 0.01)
    wire = Wire()
    wire.open.clear()
    queue = SendQueue(wire.send, lambda crowded: None)
    queue.put(frame(0))
    with pytest.raises(PeerStalled):
        await queue.run()


async def test_a_peer_that_goes_on_asking_without_reading_stalls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine.server.send_queue, "MAX_BYTES", 10_000)
    queue = SendQueue(Wire().send, lambda crowded: None)
    for number in range(12):
        queue.put(frame(number, 1000))
    with pytest.raises(PeerStalled):
        await queue.run()
