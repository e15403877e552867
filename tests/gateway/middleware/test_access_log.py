"""Ids, log lines and cross-origin headers, over a real server."""

from __future__ import annotations

import json

import pytest

from gateway.backends.openai import OpenAIBackend
from gateway.config import ServerConfig
from tests.fakes.serving import Serve, scripted_config, until
from tests.fakes.upstream import Reply, ScriptedUpstream, chat_chunk, sse

FAILING = {"steps": [{"text": "a"}, {"fail": {"code": "upstream_failed", "message": "x"}}]}


async def test_one_line_for_each_request(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "fewer.access")
    gateway = await serve()
    await gateway.chat(headers={"x-request-id": "mine-1"})
    await until(lambda: len(caplog.messages) == 1)
    line = json.loads(caplog.messages[0])
    assert line.pop("seconds") >= 0
    assert line == {
        "id": "mine-1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "tenant": "open",
        "route": "chat",
        "model": "one",
        "prompt_tokens": 1,
        "completion_tokens": 2,
        "usage_estimated": False,
        "cache": "bypass",
    }


async def test_an_upstream_that_counts_nothing_is_marked(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fewer.access")
    reply = Reply(sse(chat_chunk("Hi"), chat_chunk(finish="stop"), "[DONE]"))
    async with ScriptedUpstream([reply]) as upstream:
        backend = OpenAIBackend("one", upstream.url, model="m")
        gateway = await serve(backends={"one": backend})
        messages = [{"role": "user", "content": "x" * 40}]
        usage = (await gateway.chat(messages=messages)).json()["usage"]
        await until(lambda: len(caplog.messages) == 1)
    line = json.loads(caplog.messages[0])
    assert (line["prompt_tokens"], line["completion_tokens"]) == (10, 1)
    assert line["usage_estimated"] is True
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (10, 1)
    assert "estimated" not in usage


async def test_polls_and_the_pages_files_are_for_debugging(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "fewer.access")
    gateway = await serve()
    polled = ["/health/live", "/health/ready", "/metrics", "/assets/chat.css"]
    for path in [*polled, "/assets/none.css", "/v1/models"]:
        await gateway.client.get(path)
    await until(lambda: len(caplog.messages) == 6)
    lines = [(json.loads(record.getMessage()), record.levelname) for record in caplog.records]
    seen = [(line["path"], level) for line, level in lines]
    assert seen == [
        *((path, "DEBUG") for path in polled),
        ("/assets/none.css", "INFO"),
        ("/v1/models", "INFO"),
    ]


async def test_not_ready_is_no_news_but_a_refused_scrape_is(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "fewer.access")
    gateway = await serve()
    gateway.scripted.is_ready = False
    assert (await gateway.client.get("/health/ready")).status_code == 503
    assert (await gateway.client.post("/metrics")).status_code == 405
    await until(lambda: len(caplog.messages) == 2)
    assert [record.levelname for record in caplog.records] == ["DEBUG", "INFO"]


async def test_what_is_not_known_is_left_out(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fewer.access")
    gateway = await serve()
    await gateway.client.get("/v1/models")
    await until(lambda: len(caplog.messages) == 1)
    known = {"id", "method", "path", "status", "seconds", "tenant"}
    assert json.loads(caplog.messages[0]).keys() == known


async def test_a_failure_in_band_is_logged_as_what_it_is(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fewer.access")
    gateway = await serve(backends=FAILING)
    assert (await gateway.chat(stream=True)).status_code == 200
    await until(lambda: len(caplog.messages) == 1)
    line = json.loads(caplog.messages[0])
    assert (line["status"], line["error"]) == (502, "upstream_failed")


async def test_a_path_cannot_forge_a_line(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "fewer.access")
    gateway = await serve()
    await gateway.client.get("/a%0a%7b%22id%22:1%7d")
    await until(lambda: len(caplog.messages) == 1)
    assert "\n" not in caplog.messages[0]
    assert json.loads(caplog.messages[0])["path"] == '/a\n{"id":1}'


@pytest.mark.parametrize(
    ("given", "kept"),
    [("abc-1.2:3_4", True), ("a b", False), ("x" * 129, False), ("\u00e9", False), ("", False)],
)
async def test_harmless_ids_are_kept(serve: Serve, given: str, kept: bool) -> None:
    gateway = await serve()
    headers = {"x-request-id": given.encode("latin-1")}
    response = await gateway.client.get("/health/live", headers=headers)
    assert (response.headers["x-request-id"] == given) is kept
    assert len(response.headers["x-request-id"]) <= 128


async def test_the_backend_never_sees_a_clients_id(serve: Serve) -> None:
    gateway = await serve()
    for _ in range(2):
        await gateway.chat(headers={"x-request-id": "same"})
    first, second = gateway.scripted.calls
    assert len({first.id, second.id, "same"}) == 3


async def test_traces_go_on(serve: Serve) -> None:
    gateway = await serve()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await gateway.chat(headers={"traceparent": trace})
    await gateway.chat(headers={"traceparent": "nonsense"})
    assert [call.traceparent for call in gateway.scripted.calls] == [trace, None]


ORIGIN = "https://chat.example"


async def test_configured_origins_may_call(serve: Serve) -> None:
    server = ServerConfig(allowed_origins=(ORIGIN,))
    gateway = await serve(scripted_config(server=server))
    asked = "authorization, content-type, x-stainless-lang"
    preflight = await gateway.client.options(
        "/v1/chat/completions",
        headers={
            "Origin": ORIGIN,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": asked,
        },
    )
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == ORIGIN
    assert preflight.headers["access-control-allow-headers"] == asked
    response = await gateway.chat(headers={"Origin": ORIGIN})
    assert response.headers["access-control-allow-origin"] == ORIGIN
    assert "x-request-id" in response.headers["access-control-expose-headers"]
    missing = await gateway.chat(model="nope", headers={"Origin": ORIGIN})
    assert missing.headers["access-control-allow-origin"] == ORIGIN


async def test_other_origins_may_not(serve: Serve) -> None:
    gateway = await serve()
    response = await gateway.client.options(
        "/v1/chat/completions",
        headers={"Origin": ORIGIN, "Access-Control-Request-Method": "POST"},
    )
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers
