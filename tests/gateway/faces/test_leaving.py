"""Clients that leave, and clients that stop reading, over real sockets with all middleware."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Any

import pytest

from gateway.backends.base import Call, Stream
from gateway.backends.scripted import ScriptedBackend
from gateway.config import ServerConfig
from tests.fakes.serving import CHAT_BODY, HELLO, Gateway, Serve, post, scripted_config, until

QUEUED: dict[str, Any] = {"steps": [{"delay_s": 30, "refuse": {"code": "overloaded"}}]}
PREFILLING: dict[str, Any] = {"steps": [{"delay_s": 30, "text": "late"}]}
DECODING: dict[str, Any] = {"steps": [{"delay_s": 0.01, "text": "x", "repeat": 3000}]}


def body(**fields: Any) -> bytes:
    return post("/v1/chat/completions", json.dumps(CHAT_BODY | fields).encode())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [PREFILLING, DECODING])
async def test_thirty_clients_leave(
    serve: Serve, stream: bool, script: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """B07: the generation of each ends at once, is recorded as 499, and nothing is left."""
    caplog.set_level("INFO", "fewer.access")
    gateway: Gateway = await serve(backends=script)
    backend = gateway.scripted
    connections = [await gateway.raw(body(stream=stream)) for _ in range(30)]
    await until(lambda: len(backend.running) == 30)
    for _, writer in connections:
        writer.close()
    async with asyncio.timeout(2):
        await until(lambda: not backend.running)
    assert len(backend.cancelled) == 30
    await until(lambda: len(caplog.messages) == 30)
    assert all(json.loads(line)["status"] == 499 for line in caplog.messages)


async def test_a_client_leaves_while_its_request_waits_for_the_backend(serve: Serve) -> None:
    gateway: Gateway = await serve(backends=QUEUED)
    _, writer = await gateway.raw(body())
    await until(lambda: len(gateway.scripted.calls) == 1)
    writer.close()
    await until(lambda: not gateway.server.server_state.tasks)


async def test_a_client_leaves_while_it_sends(serve: Serve) -> None:
    gateway: Gateway = await serve()
    _, writer = await gateway.raw(body()[:-5])
    await until(lambda: len(gateway.server.server_state.tasks) == 1)
    writer.close()
    await until(lambda: not gateway.server.server_state.tasks)
    assert not gateway.scripted.calls


async def test_a_reset_connection_leaves_no_traceback(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """B33, over HTTP: both sides end at about the same moment."""
    script = {
        "steps": [{"delay_s": 0.002, "text": "x", "repeat": 5}, {"fail": {"code": "unavailable"}}]
    }
    gateway: Gateway = await serve(backends=script)
    for delay_s in [0.0, 0.005, 0.01, 0.015] * 8:
        _, writer = await gateway.raw(body(stream=True))
        await asyncio.sleep(delay_s)
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()
    await until(lambda: not gateway.server.server_state.tasks)
    assert not [r for r in caplog.records if r.levelname in ("ERROR", "CRITICAL")]
    assert not gateway.scripted.running


class Lingering(ScriptedBackend):
    """Takes a while to close a stream that has ended."""

    async def generate(self, call: Call) -> Stream:
        stream = await super().generate(call)
        close = stream.aclose

        async def slow_close() -> None:
            for _ in range(5):
                await asyncio.sleep(0)
            await close()

        stream.aclose = slow_close  # type: ignore[method-assign]
        return stream


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_that_has_ended_is_no_client_that_left(
    serve: Serve, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Servers announce the end of a response as a disconnect."""
    caplog.set_level("INFO", "fewer.access")
    gateway: Gateway = await serve(backends={"one": Lingering("one", HELLO)})
    assert (await gateway.chat(stream=stream)).status_code == 200
    await until(lambda: len(caplog.messages) == 1)
    assert json.loads(caplog.messages[0])["status"] == 200
    assert "error" not in json.loads(caplog.messages[0])


async def test_a_slow_reader_is_paused_alone_and_then_cut_off(serve: Serve) -> None:
    """Its own call waits; memory is bounded by the buffers; others stream on."""
    server = ServerConfig(slow_reader_s=0.4)
    flood = {"steps": [{"text": "x" * 4000, "repeat": 20_000}]}
    gateway: Gateway = await serve(scripted_config(server=server), flood)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(slow, ("127.0.0.1", gateway.port))
        await loop.sock_sendall(slow, body(stream=True))
        await until(lambda: len(gateway.scripted.running) == 1)
        other = asyncio.create_task(gateway.client.get("/v1/models"))
        assert (await other).status_code == 200
        async with asyncio.timeout(5):
            await until(lambda: not gateway.scripted.running)
        await until(lambda: not gateway.server.server_state.tasks)
        received = 0
        with contextlib.suppress(ConnectionError):
            while data := await loop.sock_recv(slow, 65536):
                received += len(data)
        assert received < 2_000_000
    assert list(gateway.scripted.cancelled)


async def test_a_reader_that_goes_on_is_not_cut_off(serve: Serve) -> None:
    server = ServerConfig(slow_reader_s=2.0)
    flood = {"steps": [{"text": "x" * 4000, "repeat": 1000}]}
    gateway: Gateway = await serve(scripted_config(server=server), flood)
    text = (await gateway.chat(stream=True)).text
    assert text.endswith("data: [DONE]\n\n")
    assert len(text) > 4_000_000
