"""Who gets in: every page, every variant of its address, with keys and without (B25)."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from engine.protocol.errors import Forbidden
from gateway.config import ServerConfig
from gateway.faces import pages
from gateway.middleware.guard import GuardMiddleware, is_loopback
from gateway.middleware.request_id import begin
from gateway.stores.keys import KeyStore
from gateway.tenants import Tenants
from gateway.visit import visit_of
from tests.fakes.serving import CHAT_BODY, Gateway, Serve, scripted_config

GUARDED = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/responses/resp_1"),
    ("DELETE", "/v1/responses/resp_1"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/chat"),
    ("GET", "/metrics"),
    ("GET", "/nothing"),
    ("POST", "/"),
]
VARIANTS = ["{}", "{}/", "/{}", "{}?api_key=KEY", "{}?x=1#y", "UPPER", "PERCENT", "/x/..{}"]


def variant(path: str, form: str, key: str) -> str:
    if form == "UPPER":
        return path.upper()
    if form == "PERCENT":
        return path[:2] + "".join(f"%{ord(letter):02x}" for letter in path[2:])
    return form.format(path).replace("KEY", key)


@pytest.fixture
def store(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path / "keys.sqlite3")


@pytest.fixture
async def closed(serve: Serve, store: KeyStore) -> tuple[Gateway, str]:
    """A gateway with one key."""
    key = store.create("acme").text
    gateway = await serve(tenants=Tenants(store))
    return gateway, key


async def status_of(gateway: Gateway, method: str, path: str, headers: dict[str, str]) -> int:
    """Of a request whose target is sent exactly as given, which HTTP clients tidy up."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n{lines}\r\n"
    reader, writer = await gateway.raw(head.encode())
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


async def test_every_page_needs_a_key_in_every_spelling(closed: tuple[Gateway, str]) -> None:
    gateway, key = closed
    wrong = key[:-4] + "AAAA"
    presented: list[dict[str, str]] = [
        {},
        {"Authorization": f"Bearer {wrong}"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer"},
        {"Authorization": f"Basic {key}x"},
        {"x-api-key": wrong},
        {"x-api-key": ""},
    ]
    for method, path in GUARDED:
        for form in VARIANTS:
            target = variant(path, form, key)
            for headers in presented:
                status = await status_of(gateway, method, target, headers)
                assert status == 401, (method, target, headers)
    assert not gateway.scripted.calls


async def test_the_allow_list_is_liveness_and_static_files(closed: tuple[Gateway, str]) -> None:
    gateway, _ = closed
    allowed = ["/health/live", *(route.path for route in pages.routes())]
    for path in allowed:
        assert await status_of(gateway, "GET", path, {}) == 200, path
        assert await status_of(gateway, "POST", path, {}) == 401, path
    for form in ("{}/", "/{}", "UPPER", "PERCENT"):
        assert await status_of(gateway, "GET", variant("/health/live", form, ""), {}) == 401


async def test_readiness_needs_no_key_and_then_names_nothing(closed: tuple[Gateway, str]) -> None:
    """Orchestrators cannot send one."""
    gateway, key = closed
    for headers in ({}, {"Authorization": f"Bearer {key[:-4]}AAAA"}, {"x-api-key": ""}):
        response = await gateway.client.get("/health/ready", headers=headers)
        assert (response.status_code, response.json()) == (200, {"status": "ready"})
    gateway.scripted.is_ready = False
    response = await gateway.client.get("/health/ready")
    assert (response.status_code, response.json()) == (503, {"status": "not ready"})
    for form in ("{}/", "/{}", "UPPER", "PERCENT", "/x/..{}"):
        assert await status_of(gateway, "GET", variant("/health/ready", form, ""), {}) == 401
    assert await status_of(gateway, "POST", "/health/ready", {}) == 401


async def test_readiness_names_what_a_key_may_use(serve: Serve, store: KeyStore) -> None:
    key, other = store.create("acme").text, store.create("acme", routes=["none"]).text
    gateway = await serve(tenants=Tenants(store))
    response = await gateway.client.get("/health/ready", headers={"x-api-key": key})
    assert response.json() == {"status": "ready", "routes": {"chat": True}, "models": {"one": True}}
    response = await gateway.client.get("/health/ready", headers={"x-api-key": other})
    assert response.json() == {"status": "ready", "routes": {}, "models": {}}


async def test_a_good_key_gets_in_by_either_header(closed: tuple[Gateway, str]) -> None:
    gateway, key = closed
    for headers in ({"Authorization": f"Bearer {key}"}, {"x-api-key": key}):
        assert (await gateway.chat(headers=headers)).status_code == 200
    call = gateway.scripted.calls[0]
    assert (call.tenant, bool(call.salt)) == ("acme", True)


async def test_a_refusal_is_shaped_for_openai_clients(closed: tuple[Gateway, str]) -> None:
    gateway, _ = closed
    response = await gateway.chat()
    assert response.status_code == 401
    assert response.headers["x-should-retry"] == "false"
    assert response.headers["www-authenticate"] == "Bearer"
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("authentication_error", "missing_api_key")


async def test_no_body_is_read_for_who_has_no_key(closed: tuple[Gateway, str]) -> None:
    gateway, _ = closed
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 900000000\r\n\r\n"
    reader, writer = await gateway.raw(head)
    assert b" 401 " in await reader.readline()
    writer.close()


async def test_a_websocket_is_refused_before_it_is_accepted(closed: tuple[Gateway, str]) -> None:
    gateway, key = closed
    upgrade = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
    }
    for path in ("/v1/chat/completions", "/v1/responses", "/anything", "/health/live"):
        assert await status_of(gateway, "GET", path, upgrade) == 401
        with_key = upgrade | {"Authorization": f"Bearer {key}"}
        accepted = path == "/v1/responses"
        assert await status_of(gateway, "GET", path, with_key) == (101 if accepted else 404)


async def test_revoking_holds_from_the_next_request_on(
    closed: tuple[Gateway, str], store: KeyStore
) -> None:
    gateway, key = closed
    headers = {"Authorization": f"Bearer {key}"}
    assert (await gateway.chat(headers=headers)).status_code == 200
    store.revoke(key.split("-")[1])
    assert (await gateway.chat(headers=headers)).status_code == 401


async def test_a_key_is_held_to_its_routes(serve: Serve, store: KeyStore) -> None:
    key = store.create("acme", routes=["other"]).text
    headers = {"Authorization": f"Bearer {key}"}
    gateway = await serve(tenants=Tenants(store))
    for asked in ("chat", "one"):
        response = await gateway.chat(headers=headers, model=asked)
        assert response.status_code == 403
        assert response.headers["x-should-retry"] == "false"
        assert response.json()["error"]["type"] == "permission_error"
    listed = await gateway.client.get("/v1/models", headers=headers)
    assert listed.json()["data"] == []
    unknown = await gateway.chat(headers=headers, model="nope")
    assert "chat" not in unknown.json()["error"]["message"]


async def test_no_key_in_any_log_line_or_metric(
    closed: tuple[Gateway, str], caplog: pytest.LogCaptureFixture
) -> None:
    gateway, key = closed
    caplog.set_level(logging.DEBUG)
    headers = {"Authorization": f"Bearer {key}"}
    await gateway.chat(headers=headers)
    await gateway.client.get(f"/v1/models?api_key={key}")
    metrics = (await gateway.client.get("/metrics", headers=headers)).text
    ours = [r.getMessage() for r in caplog.records if not r.name.startswith(("http", "asyncio"))]
    secret = key.rsplit("-", 1)[1]
    assert secret not in metrics + "\n".join(ours)
    assert any("/v1/models" in line for line in ours)


async def test_a_store_that_cannot_be_asked_lets_nobody_in(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "keys.sqlite3").write_bytes(b"this is no database" * 100)
    gateway = await serve(tenants=Tenants(KeyStore(tmp_path / "keys.sqlite3")))
    response = await gateway.chat()
    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert (await gateway.client.get("/health/ready")).status_code == 503


# without keys


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8080", "LOCALHOST:1", "[::1]:8080"])
async def test_loopback_names_are_answered(serve: Serve, host: str) -> None:
    gateway = await serve()
    assert (await gateway.chat(headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "a@localhost",
        "[::1",
        "x/y",
    ],
)
async def test_other_names_are_not(serve: Serve, host: str) -> None:
    gateway = await serve()
    response = await gateway.chat(headers={"Host": host})
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "host_not_allowed"


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8080", 200),
        ("https://chat.example", 200),
        ("http://localhost:3000", 403),
        ("https://evil.example", 403),
        ("null", 403),
    ],
)
async def test_origins(serve: Serve, origin: str, status: int) -> None:
    server = ServerConfig(allowed_origins=("https://chat.example",))
    gateway = await serve(scripted_config(server=server))
    response = await gateway.chat(headers={"Host": "localhost:8080", "Origin": origin})
    assert response.status_code == status


async def test_a_form_of_another_page_is_refused(serve: Serve) -> None:
    gateway = await serve()
    response = await gateway.client.post(
        "/v1/chat/completions",
        content=json.dumps(CHAT_BODY),
        headers={"content-type": "text/plain"},
    )
    assert response.status_code == 415


async def test_without_keys_a_server_beyond_loopback_answers_nobody() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        pytest.fail("got in")

    guard = GuardMiddleware(app, Tenants.open(), ServerConfig(host="0.0.0.0"), [])
    scope: Any = {"type": "http", "method": "GET", "path": "/", "raw_path": b"/", "headers": []}
    begin(scope)
    with pytest.raises(Exception, match="fewer keys create"):
        await guard(scope, _nothing, _nowhere)


async def test_a_missing_host_is_not_loopback() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        pytest.fail("got in")

    guard = GuardMiddleware(app, Tenants.open(), ServerConfig(), [])
    scope: Any = {"type": "http", "method": "GET", "path": "/", "raw_path": b"/", "headers": []}
    begin(scope)
    with pytest.raises(Forbidden):
        await guard(scope, _nothing, _nowhere)
    assert visit_of(scope).tenant is None


async def test_lifespan_passes(serve: Serve) -> None:
    """The server only starts when the guard lets the lifespan through; it did."""
    assert (await serve()).server.started


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.8.9.1", True), ("::1", True), ("localhost.", True), ("0.0.0.0", False), ("", False)],
)
def test_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


async def _nothing() -> Message:
    await asyncio.sleep(0)
    return {"type": "http.disconnect"}


async def _nowhere(message: Message) -> None:
    pytest.fail(f"answered {message}")
