"""A gateway of a few lines for the chat page: plays what a test lays out, byte for byte.

It runs uvicorn on a thread, on a port of its own, since a browser needs a real socket.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.faces import pages

Step = bytes | threading.Event
"""Bytes to send in one piece, or an event to wait for before going on."""

WAIT_S = 20.0


@dataclass(slots=True)
class Answer:
    """One answer to a completion. `headers` beside the stream's own."""

    steps: Sequence[Step]
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Refusal:
    """An HTTP error in OpenAI's form."""

    status: int
    message: str
    code: str = "error"
    headers: dict[str, str] = field(default_factory=dict)


class ChatGateway:
    """What the page sees of a gateway.

    routes:    the names of GET /v1/models
    key:       when set, other keys are answered with 401
    answers:   what the next completions get, in order
    requests:  the bodies that came
    cancelled: set when a client left before its answer ended
    """

    def __init__(self) -> None:
        self.reset()
        self.url = ""
        self.app = Starlette(
            routes=[
                *pages.routes(),
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", _Completions(self), methods=["POST"]),
            ]
        )

    def reset(self) -> None:
        """As new, but for the server that runs: one server does for many tests."""
        self.routes = ["chat", "extract"]
        self.key: str | None = None
        self.answers: deque[Answer | Refusal] = deque()
        self.requests: list[dict[str, Any]] = []
        self.cancelled = threading.Event()

    async def _models(self, request: Request) -> Response:
        if refused := self.refuse(request.headers.get("authorization")):
            return refused
        return JSONResponse({"object": "list", "data": [{"id": name} for name in self.routes]})

    def refuse(self, authorization: str | None) -> Response | None:
        if self.key is None or authorization == f"Bearer {self.key}":
            return None
        return _error(Refusal(401, "No such key.", "invalid_api_key"))


class _Completions:
    def __init__(self, gateway: ChatGateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if refused := self._gateway.refuse(request.headers.get("authorization")):
            await refused(scope, receive, send)
            return
        self._gateway.requests.append(await request.json())
        answer = self._gateway.answers.popleft()
        if isinstance(answer, Refusal):
            await _error(answer)(scope, receive, send)
            return
        playing = asyncio.ensure_future(self._play(answer, send))
        leaving = asyncio.ensure_future(_left(receive))
        await asyncio.wait((playing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not playing.done():
            self._gateway.cancelled.set()
        for task in (playing, leaving):
            task.cancel()

    async def _play(self, answer: Answer, send: Send) -> None:
        headers = {"content-type": "text/event-stream", **answer.headers}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        for step in answer.steps:
            if isinstance(step, threading.Event):
                await asyncio.to_thread(step.wait, WAIT_S)
            else:
                await send({"type": "http.response.body", "body": step, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _error(refusal: Refusal) -> Response:
    error = {"message": refusal.message, "type": "error", "param": None, "code": refusal.code}
    return JSONResponse({"error": error}, refusal.status, refusal.headers)


def chunk(delta: dict[str, Any] | None = None, **rest: Any) -> bytes:
    """One event of a chat stream."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": rest.pop("finish", None)}
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice], **rest}
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def text(piece: str) -> bytes:
    return chunk({"content": piece})


def ending(finish: str = "stop", *, prompt: int = 12, output: int = 34, cached: int = 5) -> bytes:
    """The finish, the usage and the end of a stream, as one piece of bytes."""
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return chunk(finish=finish) + chunk(choices=[], usage=usage) + b"data: [DONE]\n\n"


@contextmanager
def running(gateway: ChatGateway) -> Iterator[ChatGateway]:
    """Serve `gateway` on loopback; its `url` is set meanwhile."""
    config = uvicorn.Config(
        gateway.app, host="127.0.0.1", port=0, ws="none", lifespan="off", log_level="warning"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
            if not thread.is_alive():
                raise RuntimeError("uvicorn ended before it served.")
        port = server.servers[0].sockets[0].getsockname()[1]
        gateway.url = f"http://127.0.0.1:{port}"
        yield gateway
    finally:
        server.should_exit = True
        thread.join()
