"""The engine's OpenAI endpoints over real HTTP: answers, refusals, disconnects, slow readers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import openai
import pytest

import engine.core
import engine.server.completions
import engine.server.mailbox
from tests.fakes.engine import LETTERS, MODEL, TOKEN, Gate, Served, fake_engine, serve, until
from tests.fakes.executor import HashExecutor
from tests.fakes.tokenizer import START

HI = [{"role": "user", "content": "hi"}]
HI_IDS = [START, *b"user:hi"]
LETTERS_ONLY = {"allowed_token_ids": LETTERS}


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serve(fake_engine()) as served:
        yield served


@pytest.fixture
async def gated(gate: Gate) -> AsyncIterator[Served]:
    async with serve(fake_engine(on_run=gate)) as served:
        try:
            yield served
        finally:
            gate.open()


@pytest.fixture
async def slow() -> AsyncIterator[Served]:
    """One choice at a time, one more in the queue, 50 tokens of a prompt in 5 ms."""
    settings: dict[str, Any] = {
        "max_num_seqs": 1, "max_num_waiting": 1, "max_num_batched_tokens": 50,
    }  # fmt: skip
    async with serve(fake_engine(on_run=lambda batch: time.sleep(0.005), **settings)) as served:
        yield served


@pytest.fixture
async def client(served: Served) -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(base_url=f"{served.http}/v1", api_key=TOKEN) as client:
        yield client


def http(served: Served) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=served.http, headers=served.headers, timeout=10)


def expected(prompt: list[int], max_tokens: int, **sampling: Any) -> str:
    from engine.protocol.sampling import Sampling

    told = Sampling(temperature=0, allowed_token_ids=LETTERS, **sampling)
    return bytes(HashExecutor().generate(prompt, max_tokens, told)).decode()


# answers -------------------------------------------------------------------------------------


async def test_a_chat_answer_whole_and_streamed(client: Any) -> None:
    whole = await client.chat.completions.create(
        model=MODEL, messages=HI, max_tokens=12, temperature=0, extra_body=LETTERS_ONLY
    )
    assert whole.choices[0].message.content == expected(HI_IDS, 12)
    assert whole.choices[0].finish_reason == "length"
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(HI_IDS), 12)
    stream = await client.chat.completions.create(
        model=MODEL, messages=HI, max_tokens=12, temperature=0, extra_body=LETTERS_ONLY,
        stream=True, stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 12
    assert chunks[-2].choices[0].finish_reason == "length"


async def test_choices_prompts_and_echo(client: Any) -> None:
    answer = await client.completions.create(
        model=MODEL, prompt=["ab", "cd"], n=2, echo=True, max_tokens=5, temperature=0,
        extra_body=LETTERS_ONLY,
    )  # fmt: skip
    texts = [choice.text for choice in answer.choices]
    ab, cd = expected([*b"ab"], 5), expected([*b"cd"], 5)
    assert texts == [f"ab{ab}", f"ab{ab}", f"cd{cd}", f"cd{cd}"]
    ids = await client.completions.create(
        model=MODEL, prompt=[[*b"ab"]], echo=True, max_tokens=5, temperature=0,
        extra_body=LETTERS_ONLY, stream=True,
    )  # fmt: skip
    assert "".join([chunk.choices[0].text async for chunk in ids]) == f"ab{ab}"


async def test_logprobs_and_a_returned_seed_that_repeats(client: Any) -> None:
    async def ask(**fields: Any) -> Any:
        return await client.chat.completions.create(
            model=MODEL, messages=HI, max_tokens=6, logprobs=True, top_logprobs=5,
            extra_body=LETTERS_ONLY, **fields,
        )  # fmt: skip

    first = await ask()
    tokens = first.choices[0].logprobs.content
    assert "".join(token.token for token in tokens) == first.choices[0].message.content
    assert all(len(token.top_logprobs) == 5 for token in tokens)
    again = await ask(seed=first.choices[0].seed)
    assert again.choices[0].message.content == first.choices[0].message.content
    other = await ask(seed=first.choices[0].seed + 1)
    assert other.choices[0].message.content != first.choices[0].message.content


async def test_stop_strings_leave_no_empty_deltas(served: Served) -> None:
    """R03."""
    stop = expected(HI_IDS, 12)[8:10]
    body = {
        "messages": HI, "max_tokens": 12, "temperature": 0, "stop": [stop, "zzzz"], "stream": True,
    } | LETTERS_ONLY  # fmt: skip
    async with http(served) as session:
        answer = await session.post("/v1/chat/completions", json=body)
    payloads = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    deltas = [json.loads(p)["choices"][0] for p in payloads if p != "[DONE]"]
    assert all(d["delta"].get("content") for d in deltas[1:-1])
    assert "".join(d["delta"].get("content", "") for d in deltas) == expected(HI_IDS, 8)
    assert deltas[-1]["finish_reason"] == "stop"
    assert deltas[-1]["stop_reason"] == stop
    assert payloads[-1] == "[DONE]"


async def test_a_stream_s_headers(served: Served) -> None:
    body = {"messages": HI, "max_tokens": 2, "stream": True}
    async with http(served) as session:
        answer = await session.post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-request-id"].startswith("req-")
    assert "content-encoding" not in answer.headers


# refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"model": "other"}, 404, "model_not_found", "model"),
        ({"messages": []}, 400, "invalid_value", "messages"),
        ({"temperature": "hot"}, 400, "invalid_value", "temperature"),
        ({"logit_bias": {"258": 5}}, 400, "invalid_value", "logit_bias"),
        ({"logit_bias": {"268": 5}}, 400, "invalid_value", "logit_bias"),
        ({"logit_bias": {"-1": 5}}, 400, "invalid_value", "logit_bias"),
        ({"logit_bias": {"abc": 5}}, 400, "invalid_value", "logit_bias"),
        ({"logit_bias": {str(10**12): 5}}, 400, "invalid_value", "logit_bias"),
        ({"logit_bias": {"5": "x"}}, 400, "invalid_value", "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(400)}}, 400, "invalid_value", "logit_bias"),
        ({"allowed_token_ids": [258]}, 400, "invalid_value", "allowed_token_ids"),
        ({"response_format": {"type": "grammar"}}, 400, "invalid_value", "response_format.type"),
        ({"guided_json": {"not": {}}}, 400, "invalid_value", "guided_json"),
        ({"guided_json": {"minLength": 9, "type": "string"}}, 400, "invalid_value", "max_tokens"),
        ({"max_tokens": 2048}, 400, "context_length_exceeded", "messages"),
        ({"messages": [{"role": "user", "content": "x" * 1_000_000}]}, 400,
         "context_length_exceeded", "messages"),
        ({"messages": [{"role": "user", "content": "refuse me"}]}, 400,
         "invalid_value", "messages"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_have_a_status(
    served: Served, fields: dict[str, Any], status: int, code: str, param: str, stream: bool
) -> None:
    body = {"messages": HI, "max_tokens": 4, "stream": stream} | fields
    async with http(served) as session:
        answer = await session.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
    assert served.drained()


async def test_nan_in_logit_bias_is_named(served: Served) -> None:
    """B35."""
    body = b'{"messages": [{"role": "user", "content": "hi"}], "logit_bias": {"5": NaN}}'
    kind = {"content-type": "application/json"}
    async with http(served) as session:
        answer = await session.post("/v1/chat/completions", content=body, headers=kind)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logit_bias")


async def test_bad_requests_leave_a_healthy_stream_alone(served: Served, client: Any) -> None:
    """B35."""
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=HI,
        max_tokens=200,
        temperature=0,
        extra_body=LETTERS_ONLY,
        stream=True,
    )
    text = ""
    async with http(served) as session:
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if len(text) % 50 == 1:
                bad = {"messages": HI, "logit_bias": {"9999": 5}}
                assert (await session.post("/v1/chat/completions", json=bad)).status_code == 400
    assert text == expected(HI_IDS, 200)


@pytest.mark.parametrize("warm", [False, True])
async def test_a_prompt_longer_than_the_pool_holds_nobody_up(warm: bool) -> None:
    """B37: refused at admission, with five small requests behind it, and mostly cached too."""
    small = [{"messages": [{"role": "user", "content": f"ping {i}"}]} for i in range(5)]
    said = LETTERS_ONLY | {"max_tokens": 4, "temperature": 0}
    engine = fake_engine(num_blocks=2048 // 16, max_model_len=8192)
    async with serve(engine) as served, http(served) as session:

        async def post(body: dict[str, Any]) -> Any:
            return await session.post("/v1/chat/completions", json=body | said)

        if warm:
            cached = {"messages": [{"role": "user", "content": "x" * 1900}]}
            assert (await post(cached)).status_code == 200
        long = {"messages": [{"role": "user", "content": "x" * 3000}]}
        refused, *answers = await asyncio.gather(*map(post, [long, *small]))
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (400, "context_length_exceeded")
        assert "2048" in error["message"]
        assert "300" in error["message"]
        for answer, body in zip(answers, small, strict=True):
            ids = [START, *f"user:{body['messages'][0]['content']}".encode()]
            assert answer.json()["choices"][0]["message"]["content"] == expected(ids, 4)
        assert served.drained()


async def test_a_full_queue_is_503_with_retry_after(slow: Served) -> None:
    body = {"messages": HI, "max_tokens": 2000}
    writers = [await begin(slow, body)]
    await until(lambda: slow.engine.core.statistics().running == 1)
    writers.append(await begin(slow, body))
    await until(lambda: slow.engine.core.statistics().waiting == 1)
    async with http(slow) as session:
        refused = await session.post("/v1/chat/completions", json=body)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "overloaded"
    assert int(refused.headers["retry-after"]) >= 1
    for writer in writers:
        writer.transport.abort()
    await until(slow.drained)


async def test_a_failed_step_is_a_500_or_an_error_in_band(gate: Gate) -> None:
    broken = False

    def run(batch: object) -> None:
        gate(batch)  # type: ignore[arg-type]
        if broken:
            raise RuntimeError("the device is gone")

    async with serve(fake_engine(on_run=run)) as served, http(served) as session:
        body = {"messages": HI, "max_tokens": 50} | LETTERS_ONLY
        whole = asyncio.create_task(session.post("/v1/chat/completions", json=body))
        async with session.stream(
            "POST", "/v1/chat/completions", json=body | {"stream": True}
        ) as s:
            gate.let(5)
            lines = s.aiter_lines()
            await anext(lines)
            broken = True
            gate.open()
            payloads = [line.removeprefix("data: ") async for line in lines if line]
        assert payloads[-1] == "[DONE]"
        assert json.loads(payloads[-2])["error"]["code"] == "internal_error"
        assert '"finish_reason":"' not in "".join(payloads)
        answer = await whole
        assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
        broken = False
        assert (await session.post("/v1/chat/completions", json=body)).status_code == 200


async def test_a_core_that_dies_without_a_word_is_noticed(
    gated: Served, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.server.completions, "KEEP_ALIVE_S", 0.02)
    monkeypatch.setattr(engine.server.completions, "FIRST_KEEP_ALIVE_S", 0.02)
    body = {"messages": HI, "max_tokens": 50} | LETTERS_ONLY
    async with http(gated) as session:
        async with session.stream(
            "POST", "/v1/chat/completions", json=body | {"stream": True}
        ) as s:
            lines = s.aiter_lines()
            await anext(lines)
            monkeypatch.setattr(engine.core.Core, "alive", False)
            rest = [line.removeprefix("data: ") async for line in lines if line[:5] == "data:"]
        assert json.loads(rest[0])["error"]["code"] == "unavailable"
        assert rest[1:] == ["[DONE]"]
        whole = await session.post("/v1/chat/completions", json=body)
        assert whole.status_code == 503
        streamed = await session.post("/v1/chat/completions", json=body | {"stream": True})
        assert streamed.status_code == 503
        assert "retry-after" in streamed.headers
    gate.open()


# leaving -------------------------------------------------------------------------------------


def _load(served: Served) -> int:
    now = served.engine.core.statistics()
    return now.running + now.waiting


async def begin(served: Served, body: dict[str, Any]) -> asyncio.StreamWriter:
    """Send a request on a socket of our own, which the test then treats as it likes."""
    _, writer = await asyncio.open_connection("127.0.0.1", served.port)
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    writer.write(head.encode() + data)
    await writer.drain()
    return writer


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_its_generation(slow: Served, stream: bool) -> None:
    """B07: thirty in a row, without a gateway."""
    for _ in range(30):
        writer = await begin(slow, {"messages": HI, "max_tokens": 2000, "stream": stream})
        await until(lambda: _load(slow) == 1)
        writer.transport.abort()
        await until(slow.drained, 2)
    assert slow.engine.core.statistics().choices_finished["cancelled"] == 30


async def test_clients_that_leave_while_queued_or_prefilling() -> None:
    settings: dict[str, Any] = {"max_num_seqs": 1, "max_num_batched_tokens": 25}
    long = [{"role": "user", "content": "x" * 1500}]
    async with serve(fake_engine(on_run=lambda batch: time.sleep(0.02), **settings)) as served:
        writers = [await begin(served, {"messages": long, "max_tokens": 9}) for _ in range(5)]
        await until(lambda: _load(served) == 5)
        for writer in writers:
            writer.transport.abort()
        await until(served.drained, 2)
        assert served.engine.core.statistics().generation_tokens == 0


async def test_nothing_more_is_computed_for_who_left(gated: Served, gate: Gate) -> None:
    writer = await begin(gated, {"messages": HI, "max_tokens": 2000, "stream": True})
    gate.let(10)
    await until(lambda: gated.engine.core.statistics().steps == 10)
    writer.transport.abort()
    await until(lambda: len(gated.app._open_exchange()) == 0)
    gate.open()  # at most the step that was under way
    await until(gated.drained)
    assert gated.engine.core.statistics().steps <= 11


# silence and slowness ------------------------------------------------------------------------


async def test_silence_is_kept_alive_with_comments(
    gated: Served, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.server.completions, "FIRST_KEEP_ALIVE_S", 0.02)
    monkeypatch.setattr(engine.server.completions, "KEEP_ALIVE_S", 0.02)
    client: Any = openai.AsyncOpenAI(base_url=f"{gated.http}/v1", api_key=TOKEN)
    async with client:
        body = {"messages": HI, "max_tokens": 3, "stream": True} | LETTERS_ONLY
        async with (
            http(gated) as session,
            session.stream("POST", "/v1/chat/completions", json=body) as answer,
        ):
            lines = answer.aiter_lines()
            assert [await anext(lines) for _ in range(4)] == [": keep-alive", ""] * 2
            gate.let(3)
            rest = [line async for line in lines if line.startswith("data")]
        assert rest[-1] == "data: [DONE]"
        stream = await client.chat.completions.create(
            model=MODEL, messages=HI, max_tokens=3, extra_body=LETTERS_ONLY, stream=True
        )
        gate.open()
        assert len([chunk async for chunk in stream]) == 5


async def test_what_fails_in_the_queue_has_a_status_of_its_own(
    slow: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await begin(slow, {"messages": HI, "max_tokens": 2000})
    await until(lambda: slow.engine.core.statistics().running == 1)
    monkeypatch.setattr(engine.server.completions, "TIMEOUT_S", 0.05)
    async with http(slow) as session:
        answer = await session.post("/v1/chat/completions", json={"messages": HI, "stream": True})
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "deadline_exceeded"
    writer.transport.abort()
    await until(slow.drained)


async def test_a_client_that_stops_reading_is_paused_and_then_cut(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine.server.completions, "STALL_S", 0.5)
    monkeypatch.setattr(engine.server.mailbox, "_PAUSE_CHARS", 2_000)
    body = {
        "messages": HI, "max_tokens": 12_000, "stream": True, "n": 4, "logprobs": True,
        "top_logprobs": 20,
    }  # fmt: skip
    async with serve(fake_engine(max_model_len=65536, num_blocks=8192)) as served:
        writer = await begin(served, body)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: served.engine.core.statistics().paused == 4, 20)
        await until(served.drained, 10)
        assert served.engine.core.statistics().generation_tokens < 48_000
        writer.transport.abort()
    assert "ASGI" not in caplog.text
