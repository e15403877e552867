"""The writer of event streams, with a clock that is quick and a client that takes its time."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from gateway.config import ServerConfig
from gateway.errors import SlowReader
from gateway.faces.stream import EventWriter
from gateway.lifeline import Lifeline

QUICK = ServerConfig(keepalive_first_s=0.02, keepalive_s=0.02, slow_reader_s=0.2)


class Client:
    """Takes messages while it is open."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.asked = asyncio.Event()
        self.bodies: list[bytes] = []

    async def send(self, message: Message) -> None:
        if not self.open.is_set():
            self.asked.set()
            await self.open.wait()
        if message["type"] == "http.response.body":
            self.bodies.append(message["body"])

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}


async def test_a_keepalive_under_way_comes_before_the_next_write() -> None:
    client = Client()
    async with Lifeline(client.receive) as lifeline:
        writer = EventWriter(client.send, lifeline, QUICK, b": ka\n\n")
        await writer.open([])
        client.open.clear()
        await client.asked.wait()
        written = asyncio.create_task(writer.write(b"data", more=False))
        await asyncio.sleep(0)
        client.open.set()
        await written
        writer.close()
    assert client.bodies == [b": ka\n\n", b"data"]


async def test_closing_ends_a_keepalive_that_nobody_takes() -> None:
    client = Client()
    async with Lifeline(client.receive) as lifeline:
        writer = EventWriter(client.send, lifeline, QUICK, b": ka\n\n")
        await writer.open([])
        client.open.clear()
        await client.asked.wait()
        writer.close()
    assert client.bodies == []


async def test_a_keepalive_that_nobody_takes_shows_a_slow_reader() -> None:
    client = Client()
    lifeline = Lifeline(client.receive)

    async def stream() -> None:
        async with lifeline:
            writer = EventWriter(client.send, lifeline, QUICK, b": ka\n\n")
            await writer.open([])
            client.open.clear()
            await asyncio.Event().wait()

    with pytest.raises(SlowReader):
        await stream()


async def test_the_first_silence_is_shorter_than_the_later_ones() -> None:
    client = Client()
    server = ServerConfig(keepalive_first_s=0.02, keepalive_s=1000)
    async with Lifeline(client.receive) as lifeline:
        writer = EventWriter(client.send, lifeline, server, b": ka\n\n")
        await writer.open([])
        await asyncio.sleep(0.1)
        writer.close()
    assert client.bodies == [b": ka\n\n"]


async def test_a_client_that_does_not_even_take_the_headers_is_slow_too() -> None:
    client = Client()
    client.open.clear()

    async def stream() -> None:
        async with Lifeline(client.receive) as lifeline:
            await EventWriter(client.send, lifeline, QUICK, b": ka\n\n").open([])

    with pytest.raises(SlowReader):
        await stream()
    assert client.bodies == []
