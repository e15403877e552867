"""B31: what a WebSocket message may be, on the link; beyond it that connection closes, alone."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import websockets
from websockets.exceptions import ConnectionClosed

from engine.protocol.frames import (
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    Count,
    Counted,
    Hello,
    Ping,
    Pong,
    encode,
)
from engine.server.http import MAX_BODY_BYTES
from tests.engine.server.test_link import Peer, linked
from tests.fakes.engine import TOKEN, Served, fake_engine, serve
from tests.fakes.tokenizer import START

MIB = 1024 * 1024
COUNT = encode(Count("r", messages=[{"role": "user", "content": "hi"}])).decode()
COUNTED = Counted("r", len([START, *b"user:hi"]))


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serve(fake_engine()) as served:
        yield served


@pytest.mark.parametrize("size", [MIB, MIB + 1, MAX_FRAME_BYTES])
async def test_up_to_the_limit_a_message_is_read(served: Served, size: int) -> None:
    async with linked(served) as peer:
        await peer.socket.send(COUNT + " " * (size - len(COUNT)))
        assert await peer.answer("r") == [COUNTED]


def test_the_limit_is_that_of_a_body() -> None:
    assert MAX_FRAME_BYTES == MAX_BODY_BYTES


async def test_2000_fragments_are_one_message(served: Served) -> None:
    text = COUNT + " " * (2000 - len(COUNT))
    async with linked(served) as peer:
        await peer.socket.send(iter(text))
        assert await peer.answer("r") == [COUNTED]


async def test_above_the_limit_it_closes_with_a_reason(served: Served) -> None:
    async with linked(served) as other:
        peer = Peer(await websockets.connect(served.link))
        await peer.send(Hello(PROTOCOL_VERSION, TOKEN))
        try:
            await peer.socket.send(COUNT + " " * (MAX_FRAME_BYTES + 1 - len(COUNT)))
        except ConnectionClosed:
            pass  # refused by its length, while we still send
        code, reason = await peer.closed()
        assert code == 1009
        assert reason
        await peer.socket.wait_closed()
        await other.send(Ping())
        assert await other.receive() == Pong()


async def test_compression_is_not_agreed_to_and_a_bomb_is_not_opened(served: Served) -> None:
    """It would expand to 100 MiB; compressed messages are a fault of protocol (1002)."""
    bomb = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = bomb.compress(b" " * (100 * MIB)) + bomb.flush(zlib.Z_SYNC_FLUSH)
    data = data.removesuffix(b"\0\0\xff\xff")
    before = resident_bytes()
    async with linked(served) as other:
        peer = Peer(await websockets.connect(served.link, compression="deflate"))
        assert peer.socket.protocol.extensions == []
        head = bytes([0xC1, 0xFF]) + len(data).to_bytes(8) + b"\0\0\0\0"
        peer.socket.transport.write(head + data)  # masked with zeros: as it is
        assert (await peer.closed())[0] == 1002
        await peer.socket.wait_closed()
        await other.send(Ping())
        assert await other.receive() == Pong()
    assert resident_bytes() - before < 32 * MIB


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
