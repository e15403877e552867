"""Bad input, row by row of the design's table, and anything else: never a 500."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import ServerConfig
from gateway.stores.keys import KeyStore
from gateway.tenants import Tenants
from tests.fakes.serving import CHAT_BODY, Gateway, Serve, post, running, scripted_config

CHAT = "/v1/chat/completions"
SMALL = ServerConfig(max_body_bytes=1000, body_timeout_s=0.2, header_timeout_s=0.2)


async def answer_of(gateway: Gateway, data: bytes) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON body of the answer to raw bytes."""
    reader, writer = await gateway.raw(data)
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    lines = head.split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    writer.close()
    return int(lines[0].split()[1]), headers, json.loads(body) if body else None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b'"text"', None),
        (b"\xff\xfe", None),
        (b'{"messages":[{"role":"user","content":"\\ud800"}]}', None),
        (b"[" * 100_000, None),
        (b"{}", "messages"),
        (b'{"messages":[]}', "messages"),
        (b'{"messages":"hi"}', "messages"),
        (b'{"messages":[{"role":"user","content":"x"}],"temperature":"hot"}', "temperature"),
        (b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}', "temperature"),
        (b'{"messages":[{"role":"user","content":"x"}],"top_p":0}', "top_p"),
        (b'{"messages":[{"role":"user","content":"x"}],"n":0}', "n"),
        (b'{"messages":[{"role":"user","content":"x"}],"n":1e99}', "n"),
        (b'{"messages":[{"role":"user","content":"x"}],"max_tokens":-1}', "max_tokens"),
        (b'{"messages":[{"role":"user","content":"x"}],"model":7}', "model"),
        (b'{"messages":[{"role":"user","content":"x"}],"stream":"yes"}', "stream"),
    ],
)
async def test_malformed_bodies_name_the_field(
    serve: Serve, body: bytes, param: str | None
) -> None:
    status, headers, answer = await answer_of(await serve(), post(CHAT, body))
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["param"] == param
    assert answer["error"]["message"].endswith(".")
    assert headers["x-should-retry"] == "false"


async def test_nulls_mean_not_set(serve: Serve) -> None:
    """R19."""
    gateway = await serve()
    nulls = dict.fromkeys(["max_tokens", "stop", "tools", "seed", "n", "stream", "model"])
    assert (await gateway.chat(**nulls)).status_code == 200


async def test_unknown_models_are_named_with_those_there_are(serve: Serve) -> None:
    gateway = await serve()
    response = await gateway.chat(model="nope")
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert error["message"] == "There is no model or route 'nope'. Known are: chat."
    by_header = await gateway.chat(headers={"x-fewer-route": "nope"})
    assert by_header.status_code == 404


async def test_a_prompt_over_the_context_is_a_400_with_both_numbers(serve: Serve) -> None:
    refusal = {
        "code": "context_length_exceeded",
        "message": "The prompt has 5000 tokens; the limit is 4096.",
    }
    gateway = await serve(backends={"steps": [{"refuse": refusal}]})
    response = await gateway.chat()
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "5000" in error["message"]
    assert "4096" in error["message"]


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_a_413_and_the_connection_closes(
    serve: Serve, chunked: bool
) -> None:
    gateway = await serve(scripted_config(server=SMALL))
    body = b'{"x":"' + b"y" * 2000 + b'"}'
    if chunked:
        request = (
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n"
        ).encode()
        request += body + b"\r\n0\r\n\r\n"
    else:
        request = post(CHAT, body)
    reader, writer = await gateway.raw(request)
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer
    assert b"1000 bytes" in answer


async def test_a_body_that_only_claims_to_be_too_large_is_refused_at_once(serve: Serve) -> None:
    gateway = await serve(scripted_config(server=SMALL))
    head = post(CHAT, b"").replace(b"Content-Length: 0", b"Content-Length: 9000000000")
    status, _, answer = await answer_of(gateway, head)
    assert (status, answer["error"]["code"]) == (413, "request_too_large")


async def test_a_body_that_never_ends_is_a_408(serve: Serve) -> None:
    gateway = await serve(scripted_config(server=SMALL))
    head = post(CHAT, b"{").replace(b"Content-Length: 1", b"Content-Length: 100")
    status, headers, _ = await answer_of(gateway, head)
    assert (status, headers["connection"]) == (408, "close")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: y\r\n", 408),
        (b"nonsense\r\n\r\n", 400),
    ],
)
async def test_headers_have_limits(serve: Serve, head: bytes, status: int) -> None:
    gateway = await serve(scripted_config(server=SMALL))
    reader, writer = await gateway.raw(head)
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": ""},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
    ],
)
async def test_only_plain_json_is_taken(serve: Serve, headers: dict[str, str]) -> None:
    gateway = await serve()
    response = await gateway.client.post(CHAT, content=b"{}", headers=headers)
    assert response.status_code == 415
    assert response.json()["error"]["code"] == "unsupported_media_type"


async def test_json_with_a_charset_is_json(serve: Serve) -> None:
    gateway = await serve()
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    response = await gateway.client.post(CHAT, content=json.dumps(CHAT_BODY), headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/models", "/v1/models"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/models/", None),
        ("/v2/nothing", None),
        ("/../../etc/passwd", None),
        ("/%00", None),
    ],
)
async def test_what_is_not_there_is_json_with_a_hint(
    serve: Serve, path: str, hint: str | None
) -> None:
    status, _, answer = await answer_of(
        await serve(), f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    )
    assert status == 404
    assert hint is None or f"Did you mean {hint}?" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT, "POST"),
        ("DELETE", "/v1/models", "GET, HEAD"),
        ("POST", "/health/live", "GET, HEAD"),
        ("PUT", "/", "GET, HEAD"),
        ("OPTIONS", CHAT, "POST"),
    ],
)
async def test_wrong_methods(serve: Serve, method: str, path: str, allowed: str) -> None:
    gateway = await serve()
    response = await gateway.client.request(method, path)
    assert response.status_code == 405
    assert response.headers["allow"] == allowed
    assert response.json()["error"]["code"] == "method_not_allowed"


async def test_images_are_refused_where_the_model_reads_text_only(serve: Serve) -> None:
    gateway = await serve()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    content = [{"type": "text", "text": "What is this?"}, image]
    response = await gateway.chat(messages=[{"role": "user", "content": content}])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[0].content[1]"
    assert "text only" in response.json()["error"]["message"]
    assert not gateway.scripted.calls


async def test_a_missing_model_takes_the_default_route(serve: Serve) -> None:
    gateway = await serve()
    body = {"messages": CHAT_BODY["messages"]}
    response = await gateway.client.post(CHAT, json=body)
    assert response.status_code == 200
    assert response.json()["model"] == "chat"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)
known_fields = st.sampled_from(
    "model messages prompt max_tokens n stream stream_options stop temperature top_p tools "
    "tool_choice logit_bias logprobs top_logprobs response_format best_of min_tokens seed user "
    "input n_predict".split()
)


def test_no_body_gives_a_500() -> None:
    paths = st.sampled_from([CHAT, "/v1/completions", "/v1/embeddings"])
    bodies = st.dictionaries(known_fields, json_values, max_size=6) | json_values
    backends = {"steps": [{"text": "x"}], "embedding": {"data": []}}
    with asyncio.Runner() as runner:
        context = running(backends=backends)
        gateway = runner.run(context.__aenter__())

        @settings(max_examples=250, deadline=None)
        @given(bodies, paths)
        def check(body: Any, path: str) -> None:
            if isinstance(body, dict) and path == CHAT:
                body = CHAT_BODY | body
            status = runner.run(_status(gateway, post(path, json.dumps(body).encode())))
            assert status < 500

        check()
        runner.run(context.__aexit__(None, None, None))


async def _status(gateway: Gateway, data: bytes) -> int:
    reader, writer = await gateway.raw(data)
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


async def test_errors_keep_their_shape_with_keys_too(serve: Serve, tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "k.sqlite3")
    key = store.create("acme").text
    gateway = await serve(tenants=Tenants(store))
    response = await gateway.client.get("/nothing", headers={"Authorization": f"Bearer {key}"})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/models", "here. Did you mean /v1/models? The base URL of this server ends in /v1."),
        ("/v1/answers", "here. There are /v1/chat/completions, /v1/completions, "),
        ("/v1", "/v1/embeddings, /v1/feedback, /v1/ledger, /v1/models, /v1/responses."),
        ("/health", "here. There are /health/live, /health/ready."),
        ("/assets/none.js", "'/assets/none.js' here."),
        ("/nothing", "'/nothing' here."),
    ],
)
async def test_an_address_that_is_none_hears_of_those_that_are(
    serve: Serve, path: str, told: str
) -> None:
    gateway = await serve()
    response = await gateway.client.get(path)
    assert response.status_code == 404
    assert told in response.json()["error"]["message"]
