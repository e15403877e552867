"""The door: nothing but liveness without the token, on any spelling of any path."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import websockets
from starlette.routing import Route
from websockets.exceptions import InvalidStatus

from engine.server.guard import Guard, Token
from tests.fakes.engine import TOKEN, Served, fake_engine, serve

SECRET_ATTEMPT = "sk-guessed"


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serve(fake_engine()) as served:
        yield served


def paths(served: Served) -> list[str]:
    return [route.path for route in served.app._routes() if isinstance(route, Route)]


def spellings(path: str) -> list[str]:
    return [path, path + "/", "/" + path, path.upper(), path.replace("e", "%65", 1)]


WRONG: list[dict[str, str | bytes]] = [
    {},
    {"authorization": f"Bearer {SECRET_ATTEMPT}"},
    {"authorization": "Bearer"},
    {"authorization": TOKEN},
    {"authorization": f"Basic {TOKEN}"},
    {"authorization": f"Bearer {TOKEN}x"},
    {"x-api-key": TOKEN},
    {"authorization": b"Bearer \xc4\x80\xff"},
]


@pytest.mark.parametrize("headers", WRONG)
async def test_every_page_needs_the_token(
    served: Served, headers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with httpx2.AsyncClient(base_url=served.http, headers=headers) as session:
        for path in paths(served):
            for spelling in spellings(path):
                for method in ("GET", "POST"):
                    url = f"{served.http}{spelling}?key={TOKEN}"
                    answer = await session.request(method, url)
                    live = httpx2.URL(url).path == "/health/live"
                    assert answer.status_code == (401, 200 if method == "GET" else 405)[live], url
                    if not live:
                        assert answer.json()["error"]["code"] == "invalid_api_key"
    ours = [r.getMessage() for r in caplog.records if not r.name.startswith("httpx2")]
    assert ours
    assert not [line for line in ours if SECRET_ATTEMPT in line or TOKEN in line]


@pytest.mark.parametrize("path", ["/v1/engine/", "//v1/engine", "/V1/engine", "/v1/responses", "/"])
async def test_a_websocket_elsewhere_is_refused_before_it_is_accepted(
    served: Served, path: str
) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}):
        with pytest.raises(InvalidStatus) as caught:
            await websockets.connect(
                served.link.replace("/v1/engine", path), additional_headers=headers
            )
        assert caught.value.response.status_code == 401


@pytest.mark.parametrize("authorization", [f"Bearer {TOKEN}", f"bearer  {TOKEN}"])
async def test_the_token_opens(served: Served, authorization: str) -> None:
    async with httpx2.AsyncClient(base_url=served.http) as session:
        answer = await session.get("/v1/models", headers={"authorization": authorization})
    assert answer.status_code == 200


async def test_pages_and_methods_that_do_not_exist(served: Served) -> None:
    async with httpx2.AsyncClient(base_url=served.http, headers=served.headers) as session:
        missing = await session.get("/v1/models/")
        method = await session.put("/v1/models")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
    assert method.status_code == 405
    assert "GET" in method.headers["allow"]
    assert method.headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize(
    ("sent", "kept"), [("trace-1.a:b", True), ("x" * 129, False), ("a b", False), ("", False)]
)
async def test_request_ids(served: Served, sent: str, kept: bool) -> None:
    async with httpx2.AsyncClient(base_url=served.http) as session:
        answer = await session.get("/health/live", headers={"x-request-id": sent})
    assert (answer.headers["x-request-id"] == sent) is kept


async def test_one_log_line_for_each_request(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "fewer.engine")
    async with httpx2.AsyncClient(base_url=served.http) as session:
        await session.get("/health/live?secret=1")
        await session.get("/health/ready")
        await session.get("/health/%0alive")
    records = [record for record in caplog.records if record.name == "fewer.engine"]
    assert [[record.levelname, *record.message.split(" ")[:3]] for record in records] == [
        ["DEBUG", "GET", "/health/live", "200"],
        ["INFO", "GET", "/health/ready", "401"],
        ["INFO", "GET", "/health/\\nlive", "401"],
    ]


async def test_a_fault_of_ours_is_a_500_and_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "GET", "path": "/health/live", "headers": []}
    with pytest.raises(ZeroDivisionError):
        await Guard(broken, Token("x"))(scope, receive, send)
    assert sent[0]["status"] == 500
    assert b"internal_error" in sent[1]["body"]
    assert b"ZeroDivision" not in sent[1]["body"]


def test_a_token_hides_itself() -> None:
    assert "secret" not in repr(Token("secret"))
