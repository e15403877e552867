"""A scripted upstream: a fake OpenAI server on loopback that plays exactly the bytes given.

    async with ScriptedUpstream([Reply(chat_stream("Hel", "lo"))]) as upstream:
        backend = OpenAIBackend("large", upstream.url, model="m")

Each request takes the next reply, the last one stays. A reply's pieces are byte strings, each
flushed on its own, pauses in seconds, or `Until` an event is set, so that a test decides what
happens when. Requests are recorded with the moment their client left.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

Until = asyncio.Event
Piece = bytes | float | Until


@dataclass
class Reply:
    """One answer, played literally.

    chunked: the body is framed in HTTP chunks and properly ended; without it the body ends
             when the connection closes
    cut:     the connection closes after the last piece, whatever was promised
    """

    pieces: Iterable[Piece] = ()
    status: int = 200
    content_type: str = "text/event-stream"
    headers: dict[str, str] = field(default_factory=dict)
    chunked: bool = True
    cut: bool = False

    def head(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} Scripted", f"content-type: {self.content_type}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines.append("transfer-encoding: chunked" if self.chunked else "connection: close")
        return "\r\n".join([*lines, "", ""]).encode()


@dataclass
class Received:
    """One request as it arrived. `left` is set when its client closes or resets the socket."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class ScriptedUpstream:
    """The server. `requests` are in order of arrival; `connections` counts sockets accepted."""

    def __init__(self, replies: Iterable[Reply] = ()) -> None:
        self.replies = list(replies)
        self.requests: list[Received] = []
        self.connections = 0
        self.port = 0
        self._arrived = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._open: set[_Connection] = set()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        tasks = [connection.task for connection in self._open]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def request(self, number: int = 0) -> Received:
        """The request with this number, once it has arrived."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) > number)
        return self.requests[number]

    async def take(self, received: Received) -> Reply:
        """Record a request; returns the reply that is its turn."""
        async with self._arrived:
            self.requests.append(received)
            self._arrived.notify_all()
            return self.replies[min(len(self.requests), len(self.replies)) - 1]

    def opened(self, connection: _Connection) -> int:
        self._open.add(connection)
        self.connections += 1
        return self.connections

    def closed(self, connection: _Connection) -> None:
        self._open.discard(connection)


class _Connection(asyncio.Protocol):
    """One socket. Requests are answered one after another by `task`."""

    def __init__(self, upstream: ScriptedUpstream) -> None:
        self._upstream = upstream
        self._reader = asyncio.StreamReader()
        self._current: Received | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._number = self._upstream.opened(self)
        self.task = asyncio.create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self._reader.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        self._writable.set()
        self._reader.feed_eof()
        self._upstream.closed(self)
        if self._current is not None:
            self._current.left.set()
            self.task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def _serve(self) -> None:
        try:
            while (received := await self._read()) is not None:
                self._current = received
                reply = await self._upstream.take(received)
                await self._play(reply)
                self._current = None
                if reply.cut or not reply.chunked:
                    return
        finally:
            self._transport.close()

    async def _read(self) -> Received | None:
        try:
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split(" ", 2)
        pairs = (line.split(":", 1) for line in lines)
        headers = {name.lower(): value.strip() for name, value in pairs}
        body = await self._reader.readexactly(int(headers.get("content-length", 0)))
        return Received(method, path, headers, body, self._number)

    async def _play(self, reply: Reply) -> None:
        await self._write(reply.head())
        for piece in reply.pieces:
            if isinstance(piece, bytes):
                await self._write(b"%x\r\n%b\r\n" % (len(piece), piece) if reply.chunked else piece)
            elif isinstance(piece, Until):
                await piece.wait()
            else:
                await asyncio.sleep(piece)
        if reply.chunked and not reply.cut:
            await self._write(b"0\r\n\r\n")

    async def _write(self, data: bytes) -> None:
        self._transport.write(data)
        # One turn of the loop at least, so that each piece is a write of its own.
        await asyncio.sleep(0)
        await self._writable.wait()


def sse(*payloads: Any) -> list[Piece]:
    """Each payload (JSON, or a string as it is) as one `data:` event."""
    return [
        b"data: %b\n\n" % (p if isinstance(p, str) else json.dumps(p, ensure_ascii=False)).encode()
        for p in payloads
    ]


def chat_chunk(
    content: str | None = None,
    *,
    index: int = 0,
    finish: str | None = None,
    logprobs: Any = None,
    **delta: Any,
) -> dict[str, Any]:
    """One `chat.completion.chunk` of one choice."""
    if content is not None:
        delta["content"] = content
    choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
    return envelope([choice])


def envelope(choices: list[Any], **fields: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "scripted",
        "choices": choices,
        **fields,
    }


def usage_chunk(prompt_tokens: int = 9, completion_tokens: int = 3) -> dict[str, Any]:
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    return envelope([], usage=usage)


def chat_stream(*deltas: str, finish: str = "stop") -> list[Piece]:
    """A whole well-formed chat stream with usage."""
    return sse(
        chat_chunk("", role="assistant"),
        *map(chat_chunk, deltas),
        chat_chunk(finish=finish),
        usage_chunk(completion_tokens=len(deltas)),
        "[DONE]",
    )


def recut(pieces: Iterable[Piece], size: int) -> list[Piece]:
    """The same bytes in pieces of `size`, pauses left out."""
    data = b"".join(piece for piece in pieces if isinstance(piece, bytes))
    return [data[start : start + size] for start in range(0, len(data), size)]
