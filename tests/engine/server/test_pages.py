"""Health, models, and the tokenizer over HTTP; bodies that are too large, too slow, or not JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

import engine.server.http
import engine.server.pages
from engine.server.http import MAX_BODY_BYTES
from tests.fakes.engine import MODEL, TOKEN, Gate, Served, fake_engine, serve, until
from tests.fakes.tokenizer import START

HI = [{"role": "user", "content": "hi"}]
JSON = {"content-type": "application/json"}


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serve(fake_engine()) as served:
        yield served


@pytest.fixture
async def session(served: Served) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=served.http, headers=served.headers) as session:
        yield session


async def test_ready_says_what_is_served(session: httpx2.AsyncClient) -> None:
    for page in ("/health", "/health/ready"):
        answer = await session.get(page)
        assert answer.status_code == 200
        assert answer.json() == {
            "status": "ready", "model": MODEL, "executor": "hash", "max_model_len": 2048,
            "kv_cache_dtype": "tokens", "kv_capacity_tokens": 65536, "running": 0, "waiting": 0,
            "kv_usage_ratio": 0.0,
        }  # fmt: skip


async def test_a_step_that_hangs_makes_it_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.server.pages, "STUCK_S", 0.05)
    gate = Gate()
    async with serve(fake_engine(on_run=gate)) as served:
        core = served.engine.core
        async with httpx2.AsyncClient(base_url=served.http, headers=served.headers) as session:
            body = {"messages": HI, "max_tokens": 2}
            asked = asyncio.create_task(session.post("/v1/chat/completions", json=body))
            await until(lambda: core.seconds_since_step > 0.05)
            stuck = await session.get("/health/ready")
            assert (stuck.status_code, stuck.json()["status"]) == (503, "stuck")
            assert (await session.get("/health/live")).status_code == 200
            gate.open()
            assert (await asked).status_code == 200
            assert (await session.get("/health/ready")).status_code == 200


async def test_an_engine_whose_steps_fail_is_not_ready() -> None:
    def broken(batch: object) -> None:
        raise RuntimeError("the device is gone")

    async with serve(fake_engine(on_run=broken)) as served:
        async with httpx2.AsyncClient(base_url=served.http, headers=served.headers) as session:
            body = {"messages": HI, "max_tokens": 2}
            statuses = set()
            while served.engine.core.alive:
                answer = await session.post("/v1/chat/completions", json=body)
                statuses.add(answer.status_code)
            assert statuses <= {500, 503}
            ready = await session.get("/health/ready")
            assert (ready.status_code, ready.json()["status"]) == (503, "stopped")
            refused = await session.post("/v1/chat/completions", json=body)
            assert refused.status_code == 503
            assert "retry-after" in refused.headers
            assert (await session.get("/metrics")).status_code == 200


async def test_models(session: httpx2.AsyncClient) -> None:
    (model,) = (await session.get("/v1/models")).json()["data"]
    assert model["id"] == MODEL
    assert model["max_model_len"] == 2048
    assert (await session.get(f"/v1/models/{MODEL}")).json() == model
    assert (await session.get("/v1/models/org/other")).status_code == 404


async def test_tokenize_and_detokenize(session: httpx2.AsyncClient) -> None:
    async def post(page: str, **fields: Any) -> Any:
        return (await session.post(page, json=fields)).json()

    text = await post("/tokenize", prompt="héllo", model=MODEL, add_special_tokens=True)
    assert text == {"count": 6, "max_model_len": 2048, "tokens": [*"héllo".encode()]}
    assert await post("/detokenize", tokens=text["tokens"]) == {"prompt": "héllo"}
    chat = await post("/tokenize", messages=HI)
    assert chat["tokens"] == [START, *b"user:hi"]
    assert await post("/detokenize", tokens=[]) == {"prompt": ""}


@pytest.mark.parametrize(
    ("page", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": HI}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": [{"role": "x"}]}, "messages[0].role"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [258]}, "tokens"),
        ("/detokenize", {"tokens": ["x"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
    ],
)
async def test_bad_tokenizer_calls(
    session: httpx2.AsyncClient, page: str, fields: dict[str, Any], param: str
) -> None:
    answer = await session.post(page, json=fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_another_model_s_tokens(session: httpx2.AsyncClient) -> None:
    answer = await session.post("/tokenize", json={"prompt": "x", "model": "other"})
    assert answer.status_code == 404


# bodies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"a":1,"a":2}', b"[" * 100_000, b'{"messages": "\xff"}']
)
async def test_bodies_that_are_no_json_object(session: httpx2.AsyncClient, body: bytes) -> None:
    for page in ("/v1/chat/completions", "/v1/completions", "/tokenize"):
        answer = await session.post(page, content=body, headers=JSON)
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_compressed_bodies_are_refused(session: httpx2.AsyncClient) -> None:
    headers = JSON | {"content-encoding": "gzip"}
    answer = await session.post("/tokenize", content=b"x", headers=headers)
    assert answer.status_code == 400


async def test_a_body_over_the_limit_is_413(session: httpx2.AsyncClient) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 65536 + 2):
            yield b" " * 65536

    declared = await session.post("/tokenize", content=b" " * (MAX_BODY_BYTES + 1), headers=JSON)
    assert declared.status_code == 413
    assert declared.json()["error"]["code"] == "request_too_large"
    chunked = await session.post("/tokenize", content=endless(), headers=JSON)
    assert chunked.status_code == 413
    just = await session.post("/tokenize", content=b"{}".rjust(MAX_BODY_BYTES), headers=JSON)
    assert just.json()["error"]["param"] == "prompt"


async def test_a_body_that_never_ends_is_given_up(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.server.http, "BODY_TIMEOUT_S", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(
        f"POST /tokenize HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
        f"content-type: application/json\r\ncontent-length: 100\r\n\r\n{{".encode()
    )
    assert (await reader.readline()).split()[1] == b"408"
    writer.close()


async def test_a_client_that_leaves_within_its_body(served: Served) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(
        f"POST /tokenize HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
        f"content-type: application/json\r\ncontent-length: 100\r\n\r\n{{".encode()
    )
    await writer.drain()
    writer.transport.abort()
    async with httpx2.AsyncClient(base_url=served.http) as session:
        assert (await session.get("/health/live")).status_code == 200
