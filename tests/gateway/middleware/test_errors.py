"""Errors become answers in one place, which knows how far the response has come."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.protocol.errors import (
    Cancelled,
    FewerError,
    Forbidden,
    Overloaded,
    RateLimited,
    Unauthenticated,
    Unavailable,
)
from gateway.errors import MethodNotAllowed, SlowReader
from gateway.middleware.errors import ErrorMiddleware, headers_of
from gateway.middleware.request_id import begin
from gateway.visit import visit_of

SSE = [(b"content-type", b"text/event-stream")]


def failing(error: Exception, *before: Message) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in before:
            await send(message)
        raise error

    return app


async def outcome(app: ASGIApp, **scope: Any) -> tuple[list[Message], Any]:
    """What was sent, and the visit."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    full = {"type": "http", "method": "GET", "path": "/", "headers": []} | scope
    begin(full)
    await ErrorMiddleware(app)(full, receive, send)
    return sent, visit_of(full)


async def test_before_the_response_it_is_a_status() -> None:
    sent, visit = await outcome(failing(Overloaded("Full.")))
    assert sent[0]["status"] == 503
    assert json.loads(sent[1]["body"])["error"]["message"] == "Full."
    assert (visit.status, visit.error) == (503, "overloaded")


async def test_in_an_event_stream_it_is_in_band() -> None:
    start = {"type": "http.response.start", "status": 200, "headers": SSE}
    sent, visit = await outcome(failing(Unavailable("Gone."), start))
    assert sent[0] is start
    assert sent[1]["body"].startswith(b'data: {"error":')
    assert sent[1]["body"].endswith(b"data: [DONE]\n\n")
    assert sent[1]["more_body"] is False
    assert visit.status == 503


async def test_in_another_response_there_is_nothing_to_say() -> None:
    start = {"type": "http.response.start", "status": 200, "headers": []}
    sent, _ = await outcome(failing(Unavailable("Gone."), start))
    assert sent == [start]


async def test_a_fault_of_ours_says_nothing_of_the_inside(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sent, visit = await outcome(failing(ZeroDivisionError("secret detail")))
    assert sent[0]["status"] == 500
    assert b"secret" not in sent[1]["body"]
    assert visit.id.encode() in sent[1]["body"]
    assert "secret detail" in caplog.text


async def test_a_client_that_left_is_not_answered() -> None:
    sent, visit = await outcome(failing(Cancelled("Left.")))
    assert sent == []
    assert visit.status == 499


async def test_a_slow_readers_connection_is_cut() -> None:
    cut: list[bool] = []
    extensions = {"fewer.abort": {"call": lambda: cut.append(True)}}
    sent, _ = await outcome(failing(SlowReader("Slow.")), extensions=extensions)
    assert (sent, cut) == ([], [True])
    await outcome(failing(SlowReader("Slow.")))


async def test_websockets_are_closed_where_http_cannot_be_said() -> None:
    app = failing(Unauthenticated("No."))
    sent, _ = await outcome(app, type="websocket")
    assert sent == [{"type": "websocket.close", "code": 1008, "reason": "invalid_api_key"}]
    sent, _ = await outcome(app, type="websocket", extensions={"websocket.http.response": {}})
    assert sent[0]["status"] == 401


async def test_the_lifespan_passes() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "lifespan.startup.complete"})

    sent, _ = await outcome(app, type="lifespan")
    assert sent == [{"type": "lifespan.startup.complete"}]


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (Forbidden("x"), {"x-should-retry": "false"}),
        (Unauthenticated("x"), {"x-should-retry": "false", "www-authenticate": "Bearer"}),
        (RateLimited("x"), {"x-should-retry": "false"}),
        (RateLimited("x", retry_after_s=1.5), {"retry-after": "2", "retry-after-ms": "1500"}),
        (Unavailable("x"), {"retry-after": "1", "retry-after-ms": "1000"}),
        (MethodNotAllowed("x", allowed="GET"), {"x-should-retry": "false", "allow": "GET"}),
    ],
)
def test_whether_a_retry_helps(error: FewerError, headers: dict[str, str]) -> None:
    found = {name.decode(): value.decode() for name, value in headers_of(error)}
    assert found == headers
