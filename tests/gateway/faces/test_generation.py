"""`/v1/chat/completions` and `/v1/completions`, streamed and whole, over real sockets."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from gateway.backends.scripted import ScriptedBackend
from gateway.config import ServerConfig
from gateway.faces import generation
from tests.fakes.serving import CHAT_BODY, HELLO, Gateway, Serve, scripted_config

LONG = {"steps": [{"text": "herb ", "repeat": 100}]}


def events_of(text: str) -> list[Any]:
    """Parsed data of an event stream. Any line that is not a `data:` line fails."""
    assert text.endswith("\n\n")
    events = text[:-2].split("\n\n")
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    assert events[-1] == "data: [DONE]"
    return [json.loads(event[6:]) for event in events[:-1]]


async def test_a_whole_answer(serve: Serve) -> None:
    response = await (await serve()).chat()
    assert response.status_code == 200
    answer = response.json()
    assert answer["choices"][0]["message"]["content"] == "Hello"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 2
    assert answer["model"] == "chat"
    assert response.headers["x-fewer-route"] == "chat"
    assert response.headers["x-fewer-model"] == "one"
    assert response.headers["x-fewer-decisions"] == "[]"
    assert response.headers["x-request-id"]


async def test_a_streamed_answer(serve: Serve) -> None:
    response = await (await serve()).chat(stream=True)
    assert response.headers["content-type"] == "text/event-stream"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    chunks = events_of(response.text)
    assert [c["choices"][0]["delta"].get("content") for c in chunks] == ["", "Hel", "lo", None]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert all("usage" not in chunk for chunk in chunks)


async def test_what_says_nothing_to_the_client_is_not_written(serve: Serve) -> None:
    script = {"steps": [{"accepted": 3}, {"delay_s": 0.02, "started": 1}, {"text": "a"}]}
    response = await (await serve(backends=script)).chat(stream=True)
    chunks = events_of(response.text)
    assert [c["choices"][0]["delta"].get("content") for c in chunks] == ["", "a", None]


async def test_usage_comes_last_and_only_on_request(serve: Serve) -> None:
    response = await (await serve()).chat(stream=True, stream_options={"include_usage": True})
    *before, last = events_of(response.text)
    assert all(chunk["usage"] is None for chunk in before)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 2


async def test_completions_with_several_prompts(serve: Serve) -> None:
    gateway = await serve()
    body = {"model": "chat", "prompt": ["a", "b"], "n": 2}
    answer = (await gateway.client.post("/v1/completions", json=body)).json()
    assert answer["object"] == "text_completion"
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    streamed = await gateway.client.post("/v1/completions", json=body | {"stream": True})
    chunks = events_of(streamed.text)
    assert {chunk["choices"][0]["index"] for chunk in chunks} == {0, 1, 2, 3}


async def test_tools_and_unknown_fields_are_passed_on(serve: Serve) -> None:
    gateway = await serve()
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    await gateway.chat(tools=tools, tool_choice="auto", shiny=1, temperature=0.5, seed=None)
    request = gateway.scripted.calls[0].request
    assert (request.tools, request.tool_choice) == (tools, "auto")
    assert request.parameters == {"shiny": 1, "temperature": 0.5}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "cap", "tokens"),
    [
        ({"max_completion_tokens": 7}, None, 7),
        ({"max_completion_tokens": 7, "max_tokens": 50}, None, 7),
        ({"max_completion_tokens": 7, "max_tokens": 50}, 5, 5),
        ({"max_tokens": 50}, 5, 5),
        ({"max_tokens": 5}, None, 5),
        ({}, 5, 5),
        ({"max_output_tokens": 3, "max_tokens": 9}, 5, 3),
    ],
)
async def test_every_cap_holds_and_is_told(
    serve: Serve, stream: bool, fields: dict[str, Any], cap: int | None, tokens: int
) -> None:
    """B21, and B05: an answer that was cut says `length`."""
    gateway = await serve(scripted_config(budget=cap), LONG)
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    response = await gateway.chat(**fields, **options)
    if stream:
        *_, finish, usage = events_of(response.text)
        reason, used = finish["choices"][0]["finish_reason"], usage["usage"]
    else:
        reason, used = response.json()["choices"][0]["finish_reason"], response.json()["usage"]
    assert (reason, used["completion_tokens"]) == ("length", tokens)


async def test_decisions_are_told_in_a_header(serve: Serve) -> None:
    gateway = await serve(scripted_config(budget=5), LONG)
    response = await gateway.chat(max_tokens=50)
    (budget,) = json.loads(response.headers["x-fewer-decisions"])
    assert budget == {
        "policy": "budget",
        "mode": "active",
        "action": "rewrite",
        "reason": "max_tokens clamped: 50 to 5",
        "arm": "treated",
    }
    assert "x-fewer-debug" not in response.headers


async def test_the_whole_record_is_told_to_who_asks(serve: Serve) -> None:
    gateway = await serve(scripted_config(budget=5), LONG)
    response = await gateway.chat(max_tokens=50, headers={"x-fewer-debug": "true"})
    budget, cache, coalesce = json.loads(response.headers["x-fewer-decisions"])
    assert (budget["asked"], budget["allowed"], budget["arm"]) == (50, 5, "treated")
    assert [len(each["epoch"]) for each in (budget, cache, coalesce)] == [16, 16, 16]
    assert (cache["policy"], cache["action"], coalesce["policy"]) == ("cache", "keep", "coalesce")
    about = json.loads(response.headers["x-fewer-debug"])
    assert (about["tenant"], len(about["conversation"])) == ("open", 16)
    assert about["ms"] > about["policies_us"] / 1000 > 0


async def test_a_refusal_has_its_record_too(serve: Serve) -> None:
    gateway = await serve(scripted_config(budget=1), LONG)
    body = {"model": "chat", "prompt": ["a", "b"]}
    for headers, told in (({}, False), ({"x-fewer-debug": "true"}, True)):
        response = await gateway.client.post("/v1/completions", json=body, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "policy_denied")
        assert ("x-fewer-decisions" in response.headers) == told
    (budget,) = json.loads(response.headers["x-fewer-decisions"])
    assert (budget["policy"], budget["action"]) == ("budget", "refuse")


FAILING = {"steps": [{"text": "Hel"}, {"fail": {"code": "unavailable", "message": "It died."}}]}


async def test_a_failure_in_a_stream_is_told_in_band_and_never_a_clean_finish(
    serve: Serve,
) -> None:
    gateway = await serve(backends=FAILING)
    response = await gateway.chat(stream=True)
    chunks = events_of(response.text)
    assert chunks[-1]["error"]["message"] == "It died."
    assert "choices" not in chunks[-1]
    assert not any(c["choices"][0]["finish_reason"] for c in chunks[:-1])


async def test_a_failure_of_a_whole_answer_has_a_status(serve: Serve) -> None:
    response = await (await serve(backends=FAILING)).chat()
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "unavailable"
    assert response.headers["retry-after"] == "1"


async def test_a_refusal_before_the_first_byte_has_a_status(serve: Serve) -> None:
    refusing = {
        "steps": [{"refuse": {"code": "overloaded", "message": "Full.", "retry_after_s": 2.5}}]
    }
    response = await (await serve(backends=refusing)).chat(stream=True)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "overloaded"
    assert response.headers["retry-after"] == "3"
    assert response.headers["retry-after-ms"] == "2500"


EMPTY_CHUNK = '"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":null}]'


@pytest.mark.parametrize(
    ("keepalive", "expected"), [("comment", ": keep-alive\n\n"), ("chunk", EMPTY_CHUNK)]
)
@pytest.mark.parametrize("include_usage", [False, True])
async def test_silence_is_filled_as_configured(
    serve: Serve, keepalive: Any, expected: str, include_usage: bool
) -> None:
    server = ServerConfig(keepalive=keepalive, keepalive_first_s=0.02, keepalive_s=0.02)
    gateway = await serve(scripted_config(server=server), {"steps": [{"hang": True}]})
    body = CHAT_BODY | {"stream": True, "stream_options": {"include_usage": include_usage}}
    text = ""
    async with gateway.client.stream("POST", "/v1/chat/completions", json=body) as response:
        async for piece in response.aiter_text():
            text += piece
            if text.count(expected) >= 3:
                break
    assert "id:" not in text.replace('"id":', "")
    assert ('"usage":null' in text) is (keepalive == "chunk" and include_usage)


async def test_silence_can_stay_silent(serve: Serve) -> None:
    server = ServerConfig(keepalive="off", keepalive_first_s=0.02, keepalive_s=0.02)
    slow = {"steps": [{"delay_s": 0.08, "text": "Hi"}]}
    gateway = await serve(scripted_config(server=server), slow)
    assert (await gateway.chat(stream=True)).text.startswith('data: {"id"')


async def test_headers_leave_before_the_first_token(serve: Serve) -> None:
    gateway = await serve(backends={"steps": [{"hang": True}]})
    request = gateway.client.stream(
        "POST", "/v1/chat/completions", json=CHAT_BODY | {"stream": True}
    )
    async with request as response:
        assert response.status_code == 200
        assert response.headers["x-fewer-model"] == "one"


async def test_the_connection_is_free_after_done(serve: Serve) -> None:
    """R05: one connection serves streams one after the other."""
    gateway = await serve()
    for _ in range(3):
        await gateway.chat(stream=True)
    assert len(gateway.server.server_state.connections) == 1


async def test_line_ends_of_unicode_stay_inside_one_event(serve: Serve) -> None:
    """R01."""
    text = "a\u2028b\u2029c\u0085d"
    response = await (await serve(backends={"steps": [{"text": text}]})).chat(stream=True)
    assert all(line == "" or line.startswith("data: ") for line in response.text.splitlines())
    assert events_of(response.text)[1]["choices"][0]["delta"]["content"] == text


async def test_the_openai_client(serve: Serve) -> None:
    gateway: Gateway = await serve()
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key="none", max_retries=0
    ) as client:
        answer = await client.chat.completions.create(
            model="chat", messages=[{"role": "user", "content": "Hi"}]
        )
        assert answer.choices[0].message.content == "Hello"
        stream = await client.chat.completions.create(
            model="chat", messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(pieces) == "Hello"
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(
                model="nope", messages=[{"role": "user", "content": "Hi"}]
            )
        assert caught.value.code == "model_not_found"
        names = [model.id async for model in await client.models.list()]
        assert names == ["chat"]


async def test_a_long_burst_arrives_whole_and_in_order(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More events at once than one write takes."""
    monkeypatch.setattr(generation, "EVENTS_PER_WRITE", 10)
    steps = [{"text": f"{number} "} for number in range(200)]
    response = await (await serve(backends={"steps": steps})).chat(stream=True)
    texts = [c["choices"][0]["delta"].get("content") or "" for c in events_of(response.text)]
    assert "".join(texts) == "".join(f"{number} " for number in range(200))


async def test_a_fallback_answers_under_the_same_name(serve: Serve) -> None:
    full = ScriptedBackend("one", {"steps": [{"refuse": {"code": "overloaded"}}]})
    backends = {"one": full, "two": ScriptedBackend("two", HELLO)}
    gateway = await serve(scripted_config("one", "two"), backends)
    response = await gateway.chat()
    assert response.headers["x-fewer-model"] == "two"
    assert response.headers["x-fewer-route"] == "chat"
    assert response.json()["model"] == "chat"
