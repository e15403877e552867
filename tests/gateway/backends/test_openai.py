"""The OpenAI backend against a scripted upstream on a real socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from engine.protocol.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    FewerError,
    InvalidRequest,
    Overloaded,
    TooLarge,
    Unavailable,
    UpstreamFailed,
)
from engine.protocol.frames import Event, Usage
from gateway.backends.mapping import transport_errors
from gateway.backends.openai import OpenAIBackend
from gateway.backends.openai_http import Upstream
from tests.fakes.calls import HELLO, chat_call, completion_call, drain, failure, finishes, text_of
from tests.fakes.upstream import (
    Reply,
    ScriptedUpstream,
    chat_chunk,
    chat_stream,
    envelope,
    recut,
    sse,
    usage_chunk,
)


@asynccontextmanager
async def served(
    *replies: Reply, **options: Any
) -> AsyncIterator[tuple[ScriptedUpstream, OpenAIBackend]]:
    async with ScriptedUpstream(replies) as upstream:
        backend = OpenAIBackend("large", upstream.url, **{"model": "their-model", **options})
        try:
            yield upstream, backend
        finally:
            await backend.aclose()


def json_reply(status: int, body: str, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply([body.encode()], status, "application/json", named)


async def refusal(*replies: Reply, **options: Any) -> FewerError:
    async with served(*replies, **options) as (_, backend):
        with pytest.raises(FewerError) as refused:
            await backend.generate(chat_call())
        assert repr(backend) == "<OpenAIBackend large open, 0 running>"
        return refused.value


async def test_a_whole_answer() -> None:
    async with served(Reply(chat_stream("Hel", "lo"))) as (_, backend):
        stream = await backend.generate(chat_call())
        assert repr(backend) == "<OpenAIBackend large open, 1 running>"
        events = await drain(stream)
        assert repr(backend) == "<OpenAIBackend large open, 0 running>"
    assert text_of(events) == "Hello"
    assert finishes(events) == {0: "stop"}
    assert events[-1] == Event("r1", usage=Usage(prompt_tokens=9, completion_tokens=2))
    assert await stream.receive() == []


@pytest.mark.parametrize("size", [1, 2, 3, 5])
async def test_text_survives_network_cuts(size: int) -> None:
    """B01: the cut falls inside characters of more than one byte."""
    text = "Zażółć 🧵 👩‍🚀 終わり"
    async with served(Reply(recut(chat_stream(text), size))) as (_, backend):
        events = await drain(await backend.generate(chat_call()))
    assert text_of(events) == text
    assert finishes(events) == {0: "stop"}


@pytest.mark.parametrize("include_usage", [True, False])
async def test_usage_is_always_asked_for_and_metered(include_usage: bool) -> None:
    """B03: chunks without choices, with and without usage, whatever the client asked for."""
    pieces = sse(
        envelope([]),
        *map(chat_chunk, ["a", "b", "c"]),
        chat_chunk(finish="stop"),
        usage_chunk(9, 3),
        "[DONE]",
    )
    async with served(Reply(pieces)) as (upstream, backend):
        call = chat_call(stream=True, include_usage=include_usage)
        events = await drain(await backend.generate(call))
        assert upstream.requests[0].json["stream_options"] == {"include_usage": True}
    assert text_of(events) == "abc"
    assert events[-1] == Event("r1", usage=Usage(prompt_tokens=9, completion_tokens=3))


async def test_what_a_chat_request_becomes() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "See"}, image]}]
    async with served(Reply(chat_stream("ok")), api_key="sk-up") as (upstream, backend):
        call = chat_call(
            messages=messages,
            max_tokens=7,
            tools=tools,
            tool_choice="auto",
            parameters={
                "temperature": 0.5,
                "their_field": {"x": 1},
                "stream_options": {"include_obfuscation": False},
            },
        )
        await drain(await backend.generate(call))
        received = upstream.requests[0]
    assert (received.method, received.path) == ("POST", "/v1/chat/completions")
    assert received.json == {
        "model": "their-model",
        "messages": messages,
        "max_tokens": 7,
        "tools": tools,
        "tool_choice": "auto",
        "temperature": 0.5,
        "their_field": {"x": 1},
        "stream": True,
        "stream_options": {"include_obfuscation": False, "include_usage": True},
    }
    assert received.headers["authorization"] == "Bearer sk-up"
    assert received.headers["accept-encoding"] == "identity"
    assert received.headers["x-request-id"] == "r1"


async def test_a_routes_schema_and_room_for_thoughts_are_told_to_who_knows_them() -> None:
    schema = {"type": "object", "properties": {"总额": {"type": "number"}}}
    reply = Reply(chat_stream("{}"))
    async with served(reply, reasoning_field="thinking_token_budget") as (upstream, backend):
        call = chat_call(max_tokens=512, reasoning_tokens=256, schema=schema)
        await drain(await backend.generate(call))
        assert backend.capabilities.structured
        assert backend.capabilities.reasoning
        sent = upstream.requests[0].json
    assert (sent["max_tokens"], sent["thinking_token_budget"]) == (768, 256)
    assert sent["response_format"]["json_schema"]["schema"] == schema
    async with served(reply, schemas=False) as (_, backend):
        assert not backend.capabilities.structured
        assert not backend.capabilities.reasoning


async def test_what_a_completion_request_becomes() -> None:
    choices = [{"index": i, "text": t, "finish_reason": "length"} for i, t in enumerate("ab")]
    reply = Reply(sse(envelope(choices), usage_chunk(), "[DONE]"))
    async with served(reply) as (upstream, backend):
        call = completion_call(prompts=["Once", "Twice"], max_tokens=1)
        events = await drain(await backend.generate(call))
        await drain(await backend.generate(completion_call(n=2)))
    assert [text_of(events, 0), text_of(events, 1)] == ["a", "b"]
    assert upstream.requests[0].path == "/v1/completions"
    assert upstream.requests[0].json["prompt"] == ["Once", "Twice"]
    assert upstream.requests[0].json["max_tokens"] == 1
    assert upstream.requests[1].json["prompt"] == "Once"
    assert upstream.requests[1].json["n"] == 2
    assert "authorization" not in upstream.requests[0].headers


async def test_the_refused_name_of_the_budget_is_learnt_once() -> None:
    refused = json_reply(
        400, '{"error":{"message":"no","param":"max_tokens","code":"unsupported_parameter"}}'
    )
    async with served(refused, Reply(chat_stream("ok"))) as (upstream, backend):
        for _ in range(2):
            await drain(await backend.generate(chat_call(max_tokens=7)))
        budgets = [
            (r.json.get("max_tokens"), r.json.get("max_completion_tokens"))
            for r in upstream.requests
        ]
    assert budgets == [(7, None), (None, 7), (None, 7)]


async def test_two_calls_learn_the_name_at_the_same_time() -> None:
    refused = json_reply(
        400, '{"error":{"message":"no","param":"max_tokens","code":"unsupported_parameter"}}'
    )
    good = Reply(chat_stream("ok"))
    async with served(refused, refused, good) as (_, backend):
        calls = [backend.generate(chat_call(f"r{n}", max_tokens=7)) for n in range(2)]
        for stream in await asyncio.gather(*calls):
            assert text_of(await drain(stream)) == "ok"


async def test_a_refusal_of_both_names_reaches_the_client() -> None:
    body = '{"error":{"message":"no","param":"max_tokens","code":"unsupported_parameter"}}'
    error = await refusal(json_reply(400, body))
    assert type(error) is InvalidRequest


async def test_the_trace_goes_on() -> None:
    async with served(Reply(chat_stream("ok"))) as (upstream, backend):
        await drain(await backend.generate(replace(chat_call(), traceparent="00-1-2-01")))
        assert upstream.requests[0].headers["traceparent"] == "00-1-2-01"


async def test_a_backend_that_was_never_used_can_be_closed() -> None:
    await OpenAIBackend("large", "http://127.0.0.1:1", model="m").aclose()


async def test_an_upstream_that_holds_the_connection_after_done_is_let_go() -> None:
    pieces = [*chat_stream("a"), asyncio.Event()]
    async with served(Reply(pieces)) as (upstream, backend):
        assert text_of(await drain(await backend.generate(chat_call()))) == "a"
        await asyncio.wait_for(upstream.requests[0].left.wait(), 2)


async def test_connections_are_kept_and_reused() -> None:
    async with served(Reply(chat_stream("ok"))) as (upstream, backend):
        for _ in range(5):
            await drain(await backend.generate(chat_call()))
        assert upstream.connections == 1


@pytest.mark.parametrize(
    ("pieces", "complaint"),
    [
        (chat_stream("a")[:-3], "broke off"),
        (chat_stream("a")[:-1], "broke off"),
        ([*chat_stream("a")[:-3], *sse("[DONE]")], "finish_reason"),
        (sse(chat_chunk("a"), {"error": {"message": "boom"}}, "[DONE]"), "while it answered"),
        ([b"data: " + b"x" * (5 * 1024 * 1024)], "more than 4194304 bytes"),
    ],
    ids=["no finish, no [DONE]", "no [DONE]", "no finish", "error object", "endless line"],
)
async def test_a_broken_stream_ends_in_band(pieces: list[Any], complaint: str) -> None:
    async with served(Reply(pieces)) as (upstream, backend):
        events = await drain(await backend.generate(chat_call()))
        assert len(upstream.requests) == 1
    failed = failure(events)
    assert failed.code == "upstream_failed"
    assert complaint in failed.message


async def test_a_cut_connection_ends_in_band() -> None:
    async with served(Reply(chat_stream("a")[:2], cut=True)) as (_, backend):
        events = await drain(await backend.generate(chat_call()))
    assert text_of(events) == "a"
    assert "broke the connection off" in failure(events).message


async def test_done_without_a_blank_line_is_enough() -> None:
    pieces = [*chat_stream("a")[:-1], b"data: [DONE]"]
    async with served(Reply(pieces, chunked=False)) as (_, backend):
        events = await drain(await backend.generate(chat_call()))
    assert finishes(events) == {0: "stop"}
    assert isinstance(events[-1], Event)


@pytest.mark.parametrize(
    ("body", "kind", "message", "param"),
    [
        ('{"error":{"message":"bad stop","param":"stop"}}', InvalidRequest, "bad stop", "stop"),
        ('{"object":"error","message":"bad","param":"n"}', InvalidRequest, "bad", "n"),
        ('{"error":"too short","error_type":"validation"}', InvalidRequest, "too short", None),
        ('{"detail":"nope"}', InvalidRequest, "nope", None),
        ("<html>", InvalidRequest, "The backend of large refused the request.", None),
        ('{"message":"bad","param":"' + "x" * 9999 + '"}', InvalidRequest, "bad", "x" * 128),
        (
            '{"error":{"message":"long","code":"context_length_exceeded","param":"messages"}}',
            ContextLengthExceeded,
            "long",
            "messages",
        ),
    ],
)
async def test_a_clients_mistake_keeps_its_message(
    body: str, kind: type[FewerError], message: str, param: str | None
) -> None:
    for status in (400, 422):
        error = await refusal(json_reply(status, body))
        assert type(error) is kind
        assert (error.message, error.param) == (message, param)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, UpstreamFailed),
        (402, UpstreamFailed),
        (403, UpstreamFailed),
        (404, UpstreamFailed),
        (413, TooLarge),
        (429, Overloaded),
        (500, UpstreamFailed),
        (502, UpstreamFailed),
        (503, Overloaded),
        (529, Overloaded),
        (302, UpstreamFailed),
        (204, UpstreamFailed),
    ],
)
async def test_statuses(status: int, kind: type[FewerError]) -> None:
    body = "" if status == 204 else '{"error":{"message":"their words sk-key"}}'
    error = await refusal(json_reply(status, body, location="http://127.0.0.1:1/"))
    assert type(error) is kind
    if status in (401, 403):
        assert "sk-key" not in error.message
        assert "credentials" in error.message


@pytest.mark.parametrize(
    ("headers", "retry_after_s"),
    [
        ({}, 1.0),
        ({"retry_after": "7"}, 7.0),
        ({"retry_after_ms": "250"}, 0.25),
        ({"retry_after": "1e9"}, 3600.0),
        ({"retry_after": "-5"}, 0.0),
        ({"retry_after": "nan"}, 1.0),
        ({"retry_after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry_after": "soon"}, 1.0),
    ],
)
async def test_retry_after_is_read_and_bounded(
    headers: dict[str, str], retry_after_s: float
) -> None:
    error = await refusal(json_reply(429, "{}", **headers))
    assert error.retry_after_s == retry_after_s


@pytest.mark.parametrize(
    ("content_type", "body", "kind", "complaint"),
    [
        ("application/json", '{"error":{"message":"no","code":400}}', InvalidRequest, "no"),
        ("application/json", '{"error":{"message":"x"}}', UpstreamFailed, "failed while"),
        ("application/json", '{"choices":[]}', UpstreamFailed, "application/json where"),
        ("text/html", "<html>hello</html>", UpstreamFailed, "text/html where"),
    ],
)
async def test_success_that_is_no_event_stream(
    content_type: str, body: str, kind: type[FewerError], complaint: str
) -> None:
    error = await refusal(Reply([body.encode()], 200, content_type))
    assert type(error) is kind
    assert complaint in error.message


async def test_an_endless_error_body_is_bounded() -> None:
    error = await refusal(Reply([b"x" * 70_000], 500, "text/plain"))
    assert "more than 65536 bytes" in error.message


async def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        backend = OpenAIBackend("large", f"http://127.0.0.1:{taken.getsockname()[1]}", model="m")
        with pytest.raises(Unavailable, match="cannot be reached") as refused:
            await backend.generate(chat_call())
        await backend.aclose()
    assert refused.value.retry_after_s is not None


class Raw(Reply):
    """An answer without a head of its own: the pieces are all there is."""

    def head(self) -> bytes:
        return b""


async def test_garbage_instead_of_http() -> None:
    error = await refusal(Raw([b"SSH-2.0-OpenSSH\r\n\r\n"], chunked=False))
    assert type(error) is UpstreamFailed
    assert "not HTTP" in error.message


async def test_a_connection_closed_without_an_answer() -> None:
    error = await refusal(Raw(chunked=False))
    assert "broke the connection off" in error.message


async def test_silence_before_and_within_an_answer() -> None:
    quiet = Reply([asyncio.Event()])
    stuck = Reply([*chat_stream("a")[:2], asyncio.Event()])
    options = {"first_event_timeout_s": 0.05, "gap_timeout_s": 0.05}
    async with served(quiet, stuck, **options) as (upstream, backend):
        first = await drain(await backend.generate(chat_call()))
        assert "sent nothing for 0.05 s" in failure(first).message
        second = await drain(await backend.generate(chat_call()))
        assert text_of(second) == "a"
        assert failure(second).code == "upstream_failed"
        for received in upstream.requests:
            await asyncio.wait_for(received.left.wait(), 2)


async def test_the_deadline_ends_a_started_stream_in_band() -> None:
    async with served(Reply([*chat_stream("a")[:2], asyncio.Event()])) as (upstream, backend):
        deadline_s = asyncio.get_running_loop().time() + 0.2
        events = await drain(await backend.generate(chat_call(deadline_s=deadline_s)))
        await asyncio.wait_for(upstream.requests[0].left.wait(), 2)
    assert failure(events).code == "deadline_exceeded"


async def test_silence_after_the_first_text_has_a_limit_of_its_own() -> None:
    stuck = Reply([*chat_stream("a")[:2], asyncio.Event()])
    options = {"first_event_timeout_s": 60.0, "gap_timeout_s": 0.05}
    async with served(stuck, **options) as (_, backend):
        events = await drain(await backend.generate(chat_call()))
    assert "sent nothing for 0.05 s" in failure(events).message


async def test_a_deadline_that_passes_while_nobody_waits_ends_the_stream() -> None:
    loop = asyncio.get_running_loop()
    async with served(Reply([*chat_stream("a")[:2], asyncio.Event()])) as (_, backend):
        deadline_s = loop.time() + 0.2
        stream = await backend.generate(chat_call(deadline_s=deadline_s))
        assert text_of(await stream.receive()) == "a"
        passed = asyncio.Event()
        loop.call_at(deadline_s + 0.01, passed.set)
        await passed.wait()
        assert failure(await stream.receive()).code == "deadline_exceeded"
        await stream.aclose()


async def test_the_deadline_holds_before_the_headers() -> None:
    async with served(Raw([asyncio.Event()])) as (upstream, backend):
        deadline_s = asyncio.get_running_loop().time() + 0.05
        with pytest.raises(DeadlineExceeded):
            await backend.generate(chat_call(deadline_s=deadline_s))
        await asyncio.wait_for(upstream.requests[0].left.wait(), 2)


async def test_closing_a_stream_closes_the_upstreams_socket() -> None:
    """B07: thirty clients leave in the middle of an answer, one after another."""
    async with served(Reply([*chat_stream("a")[:2], asyncio.Event()])) as (upstream, backend):
        for number in range(30):
            stream = await backend.generate(chat_call(str(number)))
            assert text_of(await stream.receive()) == "a"
            await stream.aclose()
            await stream.aclose()
            await asyncio.wait_for(upstream.requests[number].left.wait(), 2)
        assert repr(backend) == "<OpenAIBackend large open, 0 running>"


async def test_cancelling_the_start_closes_the_upstreams_socket() -> None:
    """B07, before the upstream has answered at all."""
    async with served(Raw([asyncio.Event()])) as (upstream, backend):
        starting = asyncio.create_task(backend.generate(chat_call()))
        received = await upstream.request()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await asyncio.wait_for(received.left.wait(), 2)


async def test_closing_the_backend_ends_its_streams_in_band() -> None:
    async with served(Reply([*chat_stream("a")[:2], asyncio.Event()])) as (_, backend):
        stream = await backend.generate(chat_call())
        assert text_of(await stream.receive()) == "a"
        waiting = asyncio.create_task(stream.receive())
        await asyncio.sleep(0)
        assert await backend.ready()
        await backend.aclose()
        failed = failure(await waiting)
        assert (failed.code, failed.message) == ("unavailable", "The gateway is shutting down.")
        assert not await backend.ready()
        with pytest.raises(Unavailable, match="shutting down"):
            await backend.generate(chat_call())
        assert repr(backend) == "<OpenAIBackend large closed, 0 running>"


async def test_embeddings_pass_through() -> None:
    body = '{"object":"list","data":[{"index":0,"embedding":[1.0]}],"model":"their-model"}'
    async with served(json_reply(200, body)) as (upstream, backend):
        answer = await backend.embed({"model": "large", "input": ["x"], "dimensions": 1})
        assert answer["data"] == [{"index": 0, "embedding": [1.0]}]
        assert upstream.requests[0].path == "/v1/embeddings"
        assert upstream.requests[0].json == {
            "model": "their-model",
            "input": ["x"],
            "dimensions": 1,
        }


async def test_embeddings_can_be_written_again() -> None:
    body = '{"data":[],"usage":{"prompt_tokens":1' + "0" * 30 + "}}"
    async with served(json_reply(200, body)) as (_, backend):
        assert (await backend.embed({"input": "x"}))["usage"]["prompt_tokens"] == 1e30


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (json_reply(400, '{"error":{"message":"bad","param":"input"}}'), InvalidRequest),
        (json_reply(503, "{}"), Overloaded),
        (json_reply(200, "[]"), UpstreamFailed),
        (json_reply(200, "nonsense"), UpstreamFailed),
    ],
)
async def test_embeddings_that_fail(reply: Reply, kind: type[FewerError]) -> None:
    async with served(reply) as (_, backend):
        with pytest.raises(kind):
            await backend.embed({"input": "x"})


async def test_messages_are_sent_as_they_came() -> None:
    async with served(Reply(chat_stream("ok"))) as (upstream, backend):
        await drain(await backend.generate(chat_call()))
    assert upstream.requests[0].json["messages"] == HELLO
    assert "max_tokens" not in upstream.requests[0].json


async def test_a_timeout_of_the_transport_is_not_taken_for_our_own() -> None:
    async def late() -> None:
        raise aiohttp.ConnectionTimeoutError

    upstream = Upstream(
        "large", "", None, max_connections=1, first_event_timeout_s=1, gap_timeout_s=1
    )
    with pytest.raises(Unavailable, match="cannot be reached"), transport_errors("large"):
        await upstream.within(late(), 60, None)
