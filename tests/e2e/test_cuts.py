"""Clients that leave, and clients that mean harm: nothing of them may stay."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Iterator

import pytest

from tests.e2e.stack import Stack, body, content, resident_peak_bytes, wait_for

pytestmark = pytest.mark.model

STREAMS = 200
SPAN_S = 3.0
MIB = 1024 * 1024


def address(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)


async def test_200_streams_cut_at_random_moments_leave_nothing(stack: Stack) -> None:
    wander = random.Random(20)
    story = "Tell a long story about a lighthouse."
    expected = await asyncio.to_thread(lambda: content(stack.stream(story, max_tokens=12)))
    beside = asyncio.create_task(
        asyncio.to_thread(lambda: content(stack.stream(story, max_tokens=12)))
    )
    moments = [wander.uniform(0.0, SPAN_S) for _ in range(STREAMS)]
    async with asyncio.timeout(60):
        leaving = asyncio.gather(
            *(leave_early(stack, number, cut_s, wander) for number, cut_s in enumerate(moments))
        )
        await asyncio.to_thread(wait_for, lambda: sum(stack.load()[:2]) > 30, "a crowd")
        await leaving
        # A neighbour sees nothing of it but the time.
        assert await beside == expected
    await asyncio.to_thread(stack.wait_idle)


async def leave_early(stack: Stack, number: int, cut_s: float, wander: random.Random) -> None:
    reader, writer = await asyncio.open_connection(*address(stack.gateway))
    asked = body(f"Story number {number}:", {"stream": number % 4 != 0, "max_tokens": 200})
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(asked) + asked
    )
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(cut_s):
            while await reader.read(65_536):
                pass
    if wander.random() < 0.5:
        writer.transport.abort()
    else:
        writer.close()
        await writer.wait_closed()


@pytest.fixture(params=["gateway", "engine"])
def server(stack: Stack, request: pytest.FixtureRequest) -> Iterator[str]:
    """Its URL. Its peak may grow by a few MiB in a test, never by what a client sends."""
    pid = stack.service.child(request.param)
    before = resident_peak_bytes(pid)
    yield {"gateway": stack.gateway, "engine": stack.engine}[request.param]
    assert resident_peak_bytes(pid) - before < 32 * MIB


@pytest.mark.parametrize(
    ("flood", "status"),
    [
        ([b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx-flood: ", *[b"x" * MIB] * 200], b"431"),
        ([b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n", *[b"x-a: b\r\n" * 1000] * 100], b"431"),
    ],
    ids=["200 MB of header", "100,000 headers"],
)
def test_header_floods_are_refused_before_they_cost(
    stack: Stack, server: str, flood: list[bytes], status: bytes
) -> None:
    refused_with(server, flood, status)
    wait_for(stack.is_ready, "the gateway")


@pytest.mark.parametrize("server", ["gateway"], indirect=True)  # the engine's limit is not set here
def test_headers_that_never_end_are_refused(server: str) -> None:
    refused_with(server, [b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: "], b"408")


def refused_with(server: str, flood: list[bytes], status: bytes) -> None:
    with socket.create_connection(address(server), timeout=20) as client:
        with contextlib.suppress(ConnectionError):  # refused while we still send
            for part in flood:
                client.sendall(part)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while data := client.recv(65_536):
                answer += data
    # What was sent in vain may make the kernel drop the answer with the connection.
    assert answer == b"" or answer.split(b" ")[1] == status
