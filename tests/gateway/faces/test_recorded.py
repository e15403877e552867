"""OpenAI's own recorded streams, played by an upstream, read by a client behind the gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.openai import OpenAIBackend
from tests.fakes.serving import Gateway, Serve
from tests.fakes.upstream import Reply, ScriptedUpstream, chat_chunk, sse


@asynccontextmanager
async def in_front_of(serve: Serve, *replies: Reply) -> AsyncIterator[Gateway]:
    async with ScriptedUpstream(replies) as upstream:
        backend = OpenAIBackend("one", upstream.url, model="gpt-4o")
        gateway = await serve(backends={"one": backend})
        yield gateway
        await backend.aclose()


def deltas_of(text: str) -> Iterator[dict[str, Any]]:
    for line in text.split("\n\n")[:-2]:
        for choice in json.loads(line.removeprefix("data: "))["choices"]:
            yield choice["delta"]


def joined(deltas: list[dict[str, Any]], field: str) -> str:
    return "".join(delta.get(field) or "" for delta in deltas)


async def test_every_recorded_stream_arrives_as_it_was(
    serve: Serve, shared_data: Callable[[str], Path]
) -> None:
    folder = shared_data("openai_recorded_streams")
    records = json.loads((folder / "index.json").read_bytes())
    replies = [Reply([(folder / record["file"]).read_bytes()]) for record in records for _ in "sw"]
    async with in_front_of(serve, *replies) as gateway:
        for record in records:
            expected = record["assembled"]["0"]
            streamed = list(deltas_of((await gateway.chat(stream=True)).text))
            assert joined(streamed, "content") == expected["content"]
            assert joined(streamed, "refusal") == expected["refusal"]
            whole = (await gateway.chat()).json()["choices"][0]
            message = whole["message"]
            assert (message["content"] or "") == expected["content"]
            assert (message["refusal"] or "") == expected["refusal"]
            assert whole["finish_reason"] == expected["finish_reason"]


async def test_a_refusal_is_no_content(serve: Serve, shared_data: Callable[[str], Path]) -> None:
    recorded = shared_data("openai_recorded_streams") / "173417d55340.sse"
    async with in_front_of(serve, Reply([recorded.read_bytes()])) as gateway:
        message = (await gateway.chat()).json()["choices"][0]["message"]
        assert message["content"] is None
        assert message["refusal"] == "I'm sorry, I can't assist with that request."
        role, *deltas, _ = deltas_of((await gateway.chat(stream=True)).text)
        assert role["role"] == "assistant"
        assert [list(delta) for delta in deltas] == [["refusal"]] * len(deltas)


def tokens_of(*tokens: str) -> list[dict[str, Any]]:
    return [{"token": token, "logprob": -0.5, "bytes": None} for token in tokens]


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_of_a_refusal_stand_apart(serve: Serve, stream: bool) -> None:
    chunks = sse(
        chat_chunk("So", logprobs={"content": tokens_of("So")}),
        chat_chunk(refusal="No", logprobs={"content": None, "refusal": tokens_of("N", "o")}),
        chat_chunk(logprobs={"content": [], "refusal": tokens_of("")}),
        chat_chunk(finish="stop"),
        "[DONE]",
    )
    async with in_front_of(serve, Reply(chunks)) as gateway:
        response = await gateway.chat(stream=stream, logprobs=True)
    if stream:
        events = [json.loads(line[6:]) for line in response.text.split("\n\n")[:-2]]
        found = [event["choices"][0]["logprobs"] for event in events]
        found = [logprobs for logprobs in found if logprobs]
    else:
        found = [response.json()["choices"][0]["logprobs"]]
    content = [t["token"] for logprobs in found for t in logprobs["content"] or ()]
    refusal = [t["token"] for logprobs in found for t in logprobs["refusal"] or ()]
    assert (content, refusal) == (["So"], ["N", "o", ""])
