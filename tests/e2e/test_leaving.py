"""Clients that close, reset, or lose their engine in the same moment: the real stack notices."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import struct
from typing import Any

import pytest

from tests.e2e.stack import Stack, body, content, wait_for
from tests.e2e.test_cuts import address

pytestmark = pytest.mark.model

NOTICED_S = 2.0
LONG: dict[str, Any] = {"max_tokens": 256, "ignore_eos": True}


async def begin(stack: Stack, **fields: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request that takes some seconds, sent on a connection of its own."""
    reader, writer = await asyncio.open_connection(*address(stack.gateway))
    asked = body("Tell a long story.", {**LONG, **fields})
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(asked) + asked
    )
    await writer.drain()
    return reader, writer


def reset(writer: asyncio.StreamWriter) -> None:
    """Close by a TCP reset."""
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def logged(stack: Stack, since: int) -> list[dict[str, Any]]:
    """The access log's lines of chat completions."""
    lines = re.findall(r"fewer\.access: (\{.*\})", stack.service.printed[since:])
    return [line for line in map(json.loads, lines) if line["path"] == "/v1/chat/completions"]


@pytest.mark.parametrize("route", ["chat", "chat-over-sse"])
@pytest.mark.parametrize("stream", [False, True])
async def test_thirty_clients_in_a_row_leave(stack: Stack, stream: bool, route: str) -> None:
    """B07: each generation ends within 2 s of its disconnect and is recorded as cancelled."""
    since = len(stack.service.printed)
    cancelled = stack.counter('choices_finished_total{reason="cancelled"}')
    for _ in range(30):
        reader, writer = await begin(stack, stream=stream, model=route)
        if stream:
            while b'"content":"' not in (await reader.readuntil(b"\n\n")):
                pass
        else:
            await asyncio.to_thread(wait_for, lambda: stack.load()[0] == 1, "it to run")
        writer.close()
        await asyncio.to_thread(
            wait_for, lambda: stack.load() == (0, 0, 0), "the generation to end", NOTICED_S
        )
    assert stack.counter('choices_finished_total{reason="cancelled"}') == cancelled + 30
    wait_for(lambda: len(logged(stack, since)) >= 30, "the log")
    # Over SSE the gateway and its engine are two servers; only the gateway keeps this log.
    assert [line["status"] for line in logged(stack, since)] == [499] * 30


async def test_a_hundred_cancels_with_logprobs(stack: Stack) -> None:
    """R07: in mid-stream, in crowds of ten; the engine lives and says what it said before."""
    before = await asyncio.to_thread(stack.ask, max_tokens=9, seed=1)

    async def leave(number: int) -> None:
        reader, writer = await begin(stack, stream=True, logprobs=True, top_logprobs=20)
        for _ in range(3 + number % 4):
            await reader.readuntil(b"\n\n")
        writer.close()

    for crowd in range(10):
        await asyncio.gather(*(leave(10 * crowd + number) for number in range(10)))
    await asyncio.to_thread(stack.wait_idle)
    after = await asyncio.to_thread(stack.ask, max_tokens=9, seed=1)
    assert after["choices"] == before["choices"]


async def test_both_sides_close_at_once(stack: Stack) -> None:
    """B33 over HTTP: clients reset and close while their engine is killed; no traceback, one log
    line for each request, and the service goes on."""
    since = len(stack.service.printed)
    story = "Tell a long story about a lighthouse."
    expected = await asyncio.to_thread(lambda: content(stack.stream(story, max_tokens=9)))
    streams = [await begin(stack, stream=True) for _ in range(12)]
    for reader, _ in streams:
        await reader.readuntil(b'"content":"')
    os.kill(stack.service.child("engine"), signal.SIGKILL)
    for number, (_, writer) in enumerate(streams):
        await asyncio.sleep((0.0, 0.005, 0.05)[number % 3])
        if number % 2:
            reset(writer)
        else:
            writer.close()
    await asyncio.to_thread(wait_for, stack.is_ready, "the service to come back")
    again = await asyncio.to_thread(lambda: content(stack.stream(story, max_tokens=9)))
    assert again == expected
    await asyncio.to_thread(wait_for, lambda: len(logged(stack, since)) >= 14, "the log")
    assert len(logged(stack, since)) == 14
    printed = stack.service.printed[since:]
    assert "Traceback" not in printed
    assert "never retrieved" not in printed
