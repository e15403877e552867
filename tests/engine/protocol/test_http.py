"""Limits that hold before ASGI: header floods, unfinished requests, WebSocket messages."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
import websockets
from websockets.exceptions import ConnectionClosed

from engine.protocol.http import (
    MAX_HEADER_BYTES,
    MAX_HEADER_COUNT,
    HardenedHttpProtocol,
)
from engine.protocol.websocket import MAX_FRAGMENTS, HardenedWebSocketProtocol

Scope = dict[str, Any]
MAX_MESSAGE_BYTES = 1024 * 1024


class Echo:
    """Answers a POST with its body's length and a WebSocket message with its length."""

    def __init__(self) -> None:
        self.requests = 0
        self.closed: list[int] = []

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.requests += 1
            await self._http(receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(receive, send)

    async def _http(self, receive: Any, send: Any) -> None:
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            size += len(message["body"])
            if not message["more_body"]:
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(size).encode()})

    async def _websocket(self, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                self.closed.append(message["code"])
                return
            data = message.get("text") or message.get("bytes")
            await send({"type": "websocket.send", "text": str(len(data))})


class Server(uvicorn.Server):
    """A server whose start can be awaited."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.up.set()


@asynccontextmanager
async def served(app: Any, http: type[asyncio.Protocol]) -> AsyncIterator[int]:
    """`app` on a free port, until the block ends."""
    config = uvicorn.Config(
        app,
        port=0,
        http=http,
        ws=HardenedWebSocketProtocol,
        ws_max_size=MAX_MESSAGE_BYTES,
        lifespan="off",
        log_config=None,
        timeout_graceful_shutdown=1,
    )
    server = Server(config)
    task = asyncio.create_task(server._serve())
    await server.up.wait()
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
async def port(echo: Echo) -> AsyncIterator[int]:
    async with served(echo, HardenedHttpProtocol) as port:
        yield port


async def answer(port: int, pieces: AsyncIterator[bytes]) -> bytes:
    """All that the server sends, while and after `pieces` are written to it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def write() -> None:
        with contextlib.suppress(ConnectionError):
            async for piece in pieces:
                writer.write(piece)
                await writer.drain()

    writing = asyncio.create_task(write())
    try:
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writing
        writer.close()


async def repeated(
    first: bytes, piece: bytes, times: int, last: bytes = b""
) -> AsyncIterator[bytes]:
    yield first
    for _ in range(times):
        yield piece
    yield last


START = b"POST / HTTP/1.1\r\nhost: x\r\n"


def peak_memory_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def test_a_200_mb_header_is_refused_before_it_costs_memory(port: int, echo: Echo) -> None:
    before = peak_memory_bytes()
    sent = repeated(START + b"x: ", b"a" * 1_000_000, 200, b"\r\n\r\n")
    received = await answer(port, sent)
    assert received.startswith(b"HTTP/1.1 431 ")
    assert b"over the limit of 65536 bytes" in received
    assert peak_memory_bytes() - before < 20_000_000
    assert echo.requests == 0


async def test_100_000_headers_are_refused(port: int, echo: Echo) -> None:
    sent = repeated(START, b"".join(b"x-%d: y\r\n" % i for i in range(1000)), 100, b"\r\n")
    received = await answer(port, sent)
    assert received.startswith(b"HTTP/1.1 431 ")
    assert f"more than {MAX_HEADER_COUNT} headers".encode() in received
    assert echo.requests == 0


async def test_headers_within_the_limits_pass(port: int) -> None:
    headers = b"".join(b"x-%d: y\r\n" % i for i in range(MAX_HEADER_COUNT - 4))
    big = b"big: " + b"z" * (MAX_HEADER_BYTES - 8000) + b"\r\n"
    request = START + headers + big + b"content-length: 100000\r\nconnection: close\r\n\r\n"
    received = await answer(port, repeated(request, b"q" * 1000, 100))
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b"100000" in received


async def test_headers_over_the_limit_in_one_read_never_reach_the_application(
    port: int, echo: Echo
) -> None:
    request = START + b"big: " + b"z" * MAX_HEADER_BYTES + b"\r\ncontent-length: 0\r\n\r\n"
    assert (await answer(port, repeated(request, b"", 0))).startswith(b"HTTP/1.1 431 ")
    assert echo.requests == 0


class Hurried(HardenedHttpProtocol):
    header_timeout_s = 0.05


async def test_headers_that_never_end_get_408(echo: Echo) -> None:
    async with served(echo, Hurried) as port:
        received = await answer(port, repeated(START, b"", 0))
        assert received.startswith(b"HTTP/1.1 408 ")
        assert await answer(port, repeated(b"", b"", 0)) == b""
    assert echo.requests == 0


async def test_the_second_request_of_a_connection_has_its_own_time(echo: Echo) -> None:
    async with served(echo, Hurried) as port:
        whole = START + b"content-length: 2\r\n\r\nok"
        received = await answer(port, repeated(whole + START, b"", 0))
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in received


class Held:
    """Answers once it may; before that it has begun, or not."""

    def __init__(self, *, begin: bool) -> None:
        self.begin = begin
        self.go_on = asyncio.Event()
        self.waiting = asyncio.Event()
        self.disconnected = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        await receive()
        if self.begin:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        self.waiting.set()
        watcher = asyncio.create_task(receive())
        going = asyncio.create_task(self.go_on.wait())
        await asyncio.wait((watcher, going), return_when=asyncio.FIRST_COMPLETED)
        going.cancel()
        if watcher.done():
            self.disconnected.set()
            return
        watcher.cancel()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"whole"})


async def held_then(app: Held, port: int, first: bytes, second: bytes) -> bytes:
    """What comes back when `second` is sent while the answer to `first` is held."""

    async def pieces() -> AsyncIterator[bytes]:
        yield first
        await app.waiting.wait()
        yield second

    return await answer(port, pieces())


WHOLE = START + b"content-length: 0\r\n\r\n"


async def test_junk_behind_a_request_that_has_no_answer_yet_gets_400() -> None:
    app = Held(begin=False)
    async with served(app, HardenedHttpProtocol) as port:
        received = await held_then(app, port, WHOLE, b"\x00junk\r\n\r\n")
        await app.disconnected.wait()
        app.go_on.set()
    assert received.startswith(b"HTTP/1.1 400 ")
    assert b"200" not in received


async def test_junk_behind_an_answer_that_has_begun_ends_the_connection() -> None:
    app = Held(begin=True)
    async with served(app, HardenedHttpProtocol) as port:
        received = await held_then(app, port, WHOLE, b"\x00junk\r\n\r\n")
        await app.disconnected.wait()
        app.go_on.set()
    assert received.endswith(b"begun\r\n")
    assert b"400" not in received


async def test_a_peer_that_leaves_disconnects_all_that_it_pipelined() -> None:
    app = Held(begin=True)
    async with served(app, HardenedHttpProtocol) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(WHOLE * 3)
        await app.waiting.wait()
        writer.transport.abort()
        async with asyncio.timeout(5):
            await app.disconnected.wait()
        app.go_on.set()


async def test_headers_of_a_peer_that_waits_for_us_are_not_late() -> None:
    app = Held(begin=False)
    async with served(app, Hurried) as port:
        asked = asyncio.create_task(answer(port, repeated(WHOLE * 2 + START, b"", 0)))
        await app.waiting.wait()
        await asyncio.sleep(3 * Hurried.header_timeout_s)
        assert not asked.done()
        app.go_on.set()
        received = await asked
    assert received.count(b"HTTP/1.1 200 ") == 2
    assert received.count(b"HTTP/1.1 408 ") == 1


async def test_chunk_extensions_and_trailers_are_bounded(port: int) -> None:
    start = START + b"transfer-encoding: chunked\r\n\r\n"
    extensions = repeated(start + b"1;", b"e" * 10_000, 100)
    assert b"HTTP/1.1 431 " in await answer(port, extensions)
    trailers = repeated(start + b"1\r\nX\r\n0\r\nt: ", b"e" * 10_000, 100)
    assert b"HTTP/1.1 431 " in await answer(port, trailers)


async def test_tiny_chunks_are_a_slow_but_legal_body(port: int) -> None:
    start = START + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    received = await answer(port, repeated(start, b"1\r\nX\r\n" * 1000, 30, b"0\r\n\r\n"))
    assert b"30000" in received


@pytest.mark.parametrize("junk", [b"\x16\x03\x01\x02", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"])
async def test_what_is_not_http_gets_400(port: int, junk: bytes) -> None:
    received = await answer(port, repeated(junk, b"", 0))
    assert received.startswith(b"HTTP/1.1 400 ")
    assert b'"invalid_request_error"' in received


H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
WEBSOCKET = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


async def in_pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]
        await asyncio.sleep(0)


@pytest.mark.parametrize("wish", [H2C, WEBSOCKET, b"Connection: upgrade\r\nUpgrade: TLS/1.0\r\n"])
@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_a_post_that_wishes_for_an_upgrade_keeps_its_body(
    port: int, wish: bytes, size: int
) -> None:
    """Java's HttpClient wishes for h2c unless it is told not to."""
    post = b"POST / HTTP/1.1\r\nHost: x\r\n" + wish
    data = post + b"Content-Length: 5\r\n\r\n12345"
    data += post + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    data += b"GET / HTTP/1.1\r\nHost: x\r\n" + H2C + b"\r\n"
    data += b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\nab"
    said = await answer(port, in_pieces(data, size))
    assert said.count(b"HTTP/1.1 200 OK") == 4
    bodies = [each.split(b"\r\n\r\n", 1)[1] for each in said.split(b"HTTP/1.1 200 OK")[1:]]
    assert bodies == [b"1\r\n%d\r\n0\r\n\r\n" % size for size in (5, 3, 0, 2)]


async def test_a_thousand_wishes_in_one_read_are_as_many_requests(port: int) -> None:
    get = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    last = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    said = await answer(port, in_pieces(get * 1000 + last, 1_000_000))
    assert said.count(b"HTTP/1.1 200 OK") == 1001


async def test_two_hosts_are_refused(port: int, echo: Echo) -> None:
    """Else the door and whoever stands before us may each believe another one."""
    get = b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
    said = await answer(port, in_pieces(get, 1000))
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b"more than one Host" in said
    assert echo.requests == 0


class Refusing:
    """Answers a WebSocket with a page."""

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.http.response.start", "status": 404, "headers": []})
        await send({"type": "websocket.http.response.body", "body": b"none"})


async def test_a_refused_websocket_is_no_fault_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    get = b"GET / HTTP/1.1\r\nHost: x\r\n" + WEBSOCKET + b"\r\n"
    async with served(Refusing(), HardenedHttpProtocol) as port:
        said = await answer(port, in_pieces(get, 1000))
    assert said.startswith(b"HTTP/1.1 404 ")
    assert [each.message for each in caplog.records if each.levelname == "ERROR"] == []


async def test_a_websocket_handshake_that_cannot_be_read_is_refused_and_closed(port: int) -> None:
    """Its lines may have 8 KiB, by another limit than ours; it was left hanging for ever."""
    long = b"GET / HTTP/1.1\r\nHost: x\r\nX: %b\r\n%b\r\n" % (b"x" * 9000, WEBSOCKET)
    said = await answer(port, in_pieces(long, 100_000))
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b"handshake is malformed" in said


async def test_websocket_messages_up_to_the_limit(port: int) -> None:
    """B31."""
    async with websockets.connect(f"ws://127.0.0.1:{port}", max_size=None) as socket:
        for size in (0x10000, MAX_MESSAGE_BYTES - 1, MAX_MESSAGE_BYTES):
            await socket.send("x" * size)
            assert await socket.recv() == str(size)
        await socket.send(["ab"] * 2000)
        assert await socket.recv() == "4000"


async def close_code(port: int, message: str | list[str]) -> int:
    """How the server closes on `message`. The library's own `close` is kept out of it: it trips
    over a connection that was lost in mid-send."""
    socket = await websockets.connect(f"ws://127.0.0.1:{port}")
    with contextlib.suppress(ConnectionClosed):
        await socket.send(message)
    with pytest.raises(ConnectionClosed) as closed:
        await socket.recv()
    await socket.wait_closed()
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


async def test_a_websocket_message_over_the_limit_closes_1009(port: int, echo: Echo) -> None:
    """B31."""
    assert await close_code(port, "x" * (MAX_MESSAGE_BYTES + 1)) == 1009
    assert await close_code(port, "x" * (20 * MAX_MESSAGE_BYTES)) == 1009
    assert await close_code(port, ["x" * 1000] * 2000) == 1009
    assert echo.closed == [1009] * 3


async def test_too_many_fragments_close_1009(port: int) -> None:
    assert await close_code(port, [""] * (MAX_FRAGMENTS + 10)) == 1009


async def test_bad_utf_8_closes_1007_without_a_traceback(
    port: int, echo: Echo, caplog: pytest.LogCaptureFixture
) -> None:
    async with websockets.connect(f"ws://127.0.0.1:{port}") as socket:
        await socket.send(b"\xff\xfe", text=True)
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1007
    assert echo.closed == [1007]
    assert "Traceback" not in caplog.text
