"""The whole gateway, faces to sockets, over a scripted OpenAI-compatible upstream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.openai import OpenAIBackend
from gateway.stores.keys import KeyStore
from gateway.tenants import Tenants
from tests.fakes.serving import CHAT_BODY, Gateway, Serve, post, scripted_config, until
from tests.fakes.upstream import (
    Piece,
    Reply,
    ScriptedUpstream,
    chat_chunk,
    chat_stream,
    envelope,
    recut,
    sse,
    usage_chunk,
)
from tests.gateway.faces.test_generation import events_of

MANY_SCRIPTS = "Zażółć 🧵 👩‍🚀 終わり"
LEFT_S = 2.0


@asynccontextmanager
async def served(
    serve: Serve, *replies: list[Piece], tenants: Tenants | None = None
) -> AsyncIterator[tuple[ScriptedUpstream, Gateway]]:
    """A gateway whose model `one` is the upstream; further replies are those of fallbacks."""
    async with ScriptedUpstream([Reply(pieces) for pieces in replies]) as upstream:
        names = ["one", "two"][: len(replies)]
        backends = {name: OpenAIBackend(name, upstream.url, model="m") for name in names}
        try:
            yield upstream, await serve(scripted_config(*names), backends, tenants)
        finally:
            for backend in backends.values():
                await backend.aclose()


def joined(chunks: list[Any]) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
async def test_characters_survive_network_cuts(serve: Serve, size: int) -> None:
    """B01: the upstream's bytes come in cuts that fall inside characters."""
    async with served(serve, recut(chat_stream(MANY_SCRIPTS), size)) as (_, gateway):
        streamed = await gateway.chat(stream=True)
        whole = await gateway.chat()
    assert joined(events_of(streamed.content.decode())) == MANY_SCRIPTS
    assert whole.json()["choices"][0]["message"]["content"] == MANY_SCRIPTS


@pytest.mark.parametrize("size", [1, 2, 3, 5])
async def test_characters_that_are_cut_by_deltas_are_whole_in_the_answer(
    serve: Serve, size: int
) -> None:
    """B01: one code point a delta, the bytes of each cut again."""
    pieces = recut(chat_stream(*MANY_SCRIPTS), size)
    async with served(serve, pieces) as (_, gateway):
        streamed = await gateway.chat(stream=True)
    assert joined(events_of(streamed.content.decode())) == MANY_SCRIPTS


ODD_CHUNKS = sse(
    envelope([]),
    *map(chat_chunk, ["a", "b", "c"]),
    chat_chunk(finish="stop"),
    usage_chunk(9, 3),
    "[DONE]",
)


@pytest.mark.parametrize("asked", [True, False])
async def test_chunks_without_choices(
    serve: Serve, asked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """B03: one usage chunk, last, or none; tokens are metered either way."""
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if asked else {}
    async with served(serve, ODD_CHUNKS) as (_, gateway):
        chunks = events_of((await gateway.chat(stream=True, **options)).text)
        metrics = (await gateway.client.get("/metrics")).text
    assert joined(chunks) == "abc"
    usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    if asked:
        assert usages == [chunks[-1]["usage"]]
        assert chunks[-1]["choices"] == []
        assert (usages[0]["prompt_tokens"], usages[0]["completion_tokens"]) == (9, 3)
    else:
        assert usages == []
        assert all(chunk["choices"] for chunk in chunks)
    assert chunks[-1 - asked]["choices"][0]["finish_reason"] == "stop"
    assert 'fewer_generation_tokens_total{model="one",route="chat"} 3.0' in metrics
    assert 'fewer_prompt_tokens_total{model="one",route="chat"} 9.0' in metrics
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_thirty_clients_in_a_row_leave(
    serve: Serve, stream: bool, keys: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """B07: the upstream's socket closes within 2 s of each disconnect; each is a 499. All
    middleware is there, with keys and without."""
    caplog.set_level("INFO", "fewer.access")
    store = KeyStore(tmp_path / "keys.sqlite3")
    more = f"Authorization: Bearer {store.create('acme').text}\r\n" if keys else ""
    started = sse(chat_chunk("", role="assistant"), chat_chunk("It takes 20 s"))
    body = json.dumps(CHAT_BODY | {"stream": stream}).encode()
    asked = post("/v1/chat/completions", body, more=more)
    tenants = Tenants(store) if keys else None
    async with served(serve, [*started, asyncio.Event()], tenants=tenants) as (upstream, gateway):
        for number in range(30):
            _, writer = await gateway.raw(asked)
            received = await upstream.request(number)
            writer.close()
            async with asyncio.timeout(LEFT_S):
                await received.left.wait()
        await until(lambda: len(caplog.messages) == 30)
    lines = [json.loads(line) for line in caplog.messages]
    assert [line["status"] for line in lines] == [499] * 30
    assert {line["tenant"] for line in lines} == {"acme" if keys else "open"}


async def test_text_is_never_sent_twice(serve: Serve) -> None:
    """R21: an upstream that breaks after its first delta is told in band, not tried again."""
    half = sse(chat_chunk("", role="assistant"), chat_chunk("half"))
    async with served(serve, half, chat_stream("half and more")) as (upstream, gateway):
        chunks = events_of((await gateway.chat(stream=True)).text)
        assert len(upstream.requests) == 1
    assert joined(chunks[:-1]) == "half"
    assert chunks[-1]["error"]["code"] == "upstream_failed"


async def test_a_cut_by_the_upstreams_limit_is_told(serve: Serve) -> None:
    """B05, over an upstream."""
    async with served(serve, chat_stream(*"abcde", finish="length")) as (_, gateway):
        *_, finish = events_of((await gateway.chat(stream=True, max_tokens=5)).text)
        whole = (await gateway.chat(max_tokens=5)).json()
    assert finish["choices"][0]["finish_reason"] == "length"
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == 5
