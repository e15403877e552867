"""The server as a process: it drains on SIGTERM, and ends at once on a second one."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import websockets
from websockets.exceptions import ConnectionClosed

from engine.protocol.errors import SetupError
from engine.protocol.frames import (
    PROTOCOL_VERSION,
    Event,
    Events,
    Generate,
    Hello,
    decode_from_engine,
    encode,
)
from engine.server.app import run
from tests.fakes.engine import TOKEN, fake_engine

ROOT = Path(__file__).parents[3]
HEADERS = {"authorization": f"Bearer {TOKEN}"}
CHAT = "/v1/chat/completions"


def body(max_tokens: int, stream: bool = True) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hi"}]
    return {"messages": messages, "max_tokens": max_tokens, "stream": stream}


class Child:
    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.port = port
        self.http = f"http://127.0.0.1:{port}"

    async def ended(self) -> tuple[int, str]:
        """Exit status, and what it printed and logged since it was ready."""
        out, log = await asyncio.wait_for(self.process.communicate(), 20)
        assert self.process.returncode is not None
        return self.process.returncode, out.decode() + log.decode()


@asynccontextmanager
async def child(step_ms: float, drain_s: float) -> AsyncIterator[Child]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.fakes.engine_process", str(step_ms), str(drain_s),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        port = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
        assert port.isdecimal(), (await process.communicate())[1].decode()
        yield Child(process, int(port))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def payloads(lines: AsyncIterator[str]) -> list[str]:
    return [line.removeprefix("data: ") async for line in lines if line.startswith("data: ")]


async def test_sigterm_lets_running_requests_finish_and_refuses_new_ones() -> None:
    async with child(step_ms=5, drain_s=20) as engine:
        async with httpx2.AsyncClient(base_url=engine.http, headers=HEADERS) as session:
            async with session.stream("POST", CHAT, json=body(200)) as answer:
                lines = answer.aiter_lines()
                await anext(lines)
                engine.process.send_signal(signal.SIGTERM)
                while (await session.get("/health/ready")).status_code == 200:
                    pass
                refused = await session.post(CHAT, json=body(1, stream=False))
                assert refused.status_code == 503
                assert refused.json()["error"]["code"] == "unavailable"
                assert int(refused.headers["retry-after"]) >= 1
                assert (await session.get("/health/live")).status_code == 200
                rest = await payloads(lines)
            assert rest[-1] == "[DONE]"
            assert json.loads(rest[-2])["choices"][0]["finish_reason"] == "length"
        status, said = await engine.ended()
        assert status == 0
        assert "ended" in said
        assert "Traceback" not in said


async def test_what_is_not_done_by_the_deadline_fails_in_band() -> None:
    async with child(step_ms=5, drain_s=0.3) as engine:
        async with httpx2.AsyncClient(base_url=engine.http, headers=HEADERS) as session:
            whole = asyncio.create_task(session.post(CHAT, json=body(2000, stream=False)))
            async with session.stream("POST", CHAT, json=body(2000)) as answer:
                lines = answer.aiter_lines()
                await anext(lines)
                began = time.monotonic()
                engine.process.send_signal(signal.SIGTERM)
                rest = await payloads(lines)
            assert json.loads(rest[-2])["error"]["code"] == "unavailable"
            assert rest[-1] == "[DONE]"
            assert (await whole).status_code == 503
        status, said = await engine.ended()
        assert time.monotonic() - began < 5
        assert status == 0
        assert "Traceback" not in said


async def test_a_link_closes_with_1012_once_its_requests_are_done() -> None:
    async with child(step_ms=5, drain_s=20) as engine:
        url = f"ws://127.0.0.1:{engine.port}/v1/engine"
        async with websockets.connect(url, max_queue=None) as socket:
            await socket.send(encode(Hello(PROTOCOL_VERSION, TOKEN)).decode())
            messages = [{"role": "user", "content": "hi"}]
            frame = Generate("r", messages=messages, max_tokens=100)
            await socket.send(encode(frame).decode())
            events: list[Event] = []

            async def read() -> None:
                while True:
                    got = decode_from_engine(await socket.recv())
                    if isinstance(got, Events):
                        if not events:
                            engine.process.send_signal(signal.SIGTERM)
                        events.extend(got.events)

            with pytest.raises(ConnectionClosed) as closed:
                await read()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012
            assert events[-1].usage is not None
            assert events[-1].usage.completion_tokens == 100
        assert (await engine.ended())[0] == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_it_at_once(second: signal.Signals) -> None:
    async with child(step_ms=5, drain_s=60) as engine:
        async with httpx2.AsyncClient(base_url=engine.http, headers=HEADERS) as session:
            async with session.stream("POST", CHAT, json=body(2000)) as answer:
                lines = answer.aiter_lines()
                await anext(lines)
                engine.process.send_signal(signal.SIGINT)
                while (await session.get("/health/ready")).status_code == 200:
                    pass
                began = time.monotonic()
                engine.process.send_signal(second)
                rest = await payloads(lines)
            assert "unavailable" in rest[-2]
        await engine.ended()
        assert time.monotonic() - began < 5


def test_a_port_in_use_is_one_line() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(SetupError, match=f"127.0.0.1:{port}: Address already in use"):
            run(fake_engine(), "127.0.0.1", port, TOKEN)


def test_an_empty_token_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        run(fake_engine(), "127.0.0.1", 0, "")
