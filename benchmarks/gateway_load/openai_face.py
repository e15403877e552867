"""An OpenAI-compatible upstream without a model: chat completions at a given pace.

As cheap as can be, so that it is not what gets measured: requests are cut with two searches,
chunks are put together from prepared pieces, each is a write of its own.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any, cast

import orjson

from benchmarks.gateway_load.pace import Paced, Wheel, stamp

PROMPT_TOKENS = 16
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_WHOLE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_IDENTITY = {"id": "chatcmpl-0", "created": 0, "model": "paced"}
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class OpenAI:
    """All connections of one listening port. `pace_s` 0 says everything at once."""

    def __init__(self, pace_s: float, step_s: float) -> None:
        self.wheel = Wheel(pace_s, step_s, lambda: None) if pace_s else None

    def connection(self) -> OpenAIConnection:
        return OpenAIConnection(self)


class OpenAIConnection(asyncio.Protocol):
    """One keep-alive connection, one request at a time."""

    def __init__(self, upstream: OpenAI) -> None:
        self._upstream = upstream
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        size = int(length[1]) if length else 0
        if end and len(body) >= size:
            self._received = body[size:]
            self._answer(orjson.loads(body) if size else {})

    def _answer(self, request: dict[str, Any]) -> None:
        tokens = request.get("max_tokens") or request.get("max_completion_tokens") or 1
        if request.get("stream"):
            self._stream(tokens)
        else:
            body = _whole(tokens)
            self.transport.write(_WHOLE_HEAD % len(body) + body)

    def _stream(self, tokens: int) -> None:
        answer, now = OpenAIAnswer(self.transport, tokens), stamp(time.monotonic())
        if self._upstream.wheel is None:
            said = b"".join([answer.chunk(now) for _ in range(tokens)])
            self.transport.write(_STREAM_HEAD + _ROLE + said)
            return
        self.transport.write(_STREAM_HEAD + _ROLE)
        if answer.say(now):
            self._upstream.wheel.join(answer)


class OpenAIAnswer(Paced):
    """One stream. left: tokens still to be said"""

    def __init__(self, transport: asyncio.Transport, tokens: int) -> None:
        self.left = tokens
        self._transport = transport
        self._end = _END % (PROMPT_TOKENS, tokens, PROMPT_TOKENS + tokens)

    def say(self, text: bytes) -> bool:
        if self._transport.is_closing():
            return False
        self._transport.write(self.chunk(text))
        return self.left > 0

    def chunk(self, text: bytes) -> bytes:
        """The next one on the wire; the last comes with all that ends the answer."""
        self.left -= 1
        chunk = _TEXT_HEAD + text + _TEXT_TAIL
        return chunk if self.left else chunk + _chunked(self._end) + b"0\r\n\r\n"


def _event(choices: list[dict[str, Any]]) -> bytes:
    whole = _IDENTITY | {"object": "chat.completion.chunk", "choices": choices}
    return b"data: " + orjson.dumps(whole) + b"\n\n"


def _choice(delta: dict[str, Any], finish: str | None = None) -> list[dict[str, Any]]:
    return [{"index": 0, "delta": delta, "finish_reason": finish}]


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _whole(tokens: int) -> bytes:
    message = {"role": "assistant", "content": (stamp(time.monotonic()) * tokens).decode()}
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens}
    return orjson.dumps(
        _IDENTITY
        | {
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": "length"}],
            "usage": usage | {"total_tokens": PROMPT_TOKENS + tokens},
        }
    )


_ROLE = _chunked(_event(_choice({"role": "assistant", "content": ""})))
_TEXT_HEAD, _TEXT_TAIL = _chunked(_event(_choice({"content": stamp(0).decode()}))).split(stamp(0))
_END = _event(_choice({}, "length")) + (
    _event([])[:-3]
    + b',"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}\n\n'
    + b"data: [DONE]\n\n"
)
