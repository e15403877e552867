"""`/v1/responses` over real sockets: OpenAI's package as it is, and what it does not show."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from gateway.config import Config, ResponsesConfig, Secret, ServerConfig
from gateway.stores.keys import KeyStore
from gateway.tenants import Tenants
from tests.fakes.serving import Gateway, Serve, scripted_config, until

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
CALLS = {
    "scripts": [
        [
            {"tool": {"index": 0, "id": "call_7", "name": "weather", "arguments": '{"city":'}},
            {"tool": {"index": 0, "arguments": '"北京"}'}},
            {"finish": "tool_calls"},
        ],
        [{"text": "It is sunny in 北京."}],
    ]
}
HANGS = {"steps": [{"text": "Hel"}, {"hang": True}]}


@asynccontextmanager
async def client_of(gateway: Gateway, key: str = "none") -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key=key, max_retries=0
    ) as client:
        yield client


async def ask(gateway: Gateway, **fields: Any) -> Any:
    body = {"model": "chat", "input": "Hi"} | fields
    return await gateway.client.post("/v1/responses", json=body)


def events_of(text: str) -> list[dict[str, Any]]:
    assert text.endswith("\n\n")
    lines = [frame.split("\n")[1] for frame in text[:-2].split("\n\n")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def keeping(config: Config | None = None, **settings: Any) -> Config:
    return msgspec.structs.replace(
        config or scripted_config(), responses=ResponsesConfig(**settings)
    )


async def test_openais_package_gets_a_whole_response(serve: Serve) -> None:
    gateway = await serve()
    async with client_of(gateway) as client:
        response = await client.responses.create(
            model="chat", input="你好", instructions="Be brief.", max_output_tokens=9,
            temperature=0.5, metadata={"topic": "greeting"}, user="u1",
        )  # fmt: skip
    assert response.output_text == "Hello"
    assert response.status == "completed"
    assert response.usage is not None
    assert response.usage.output_tokens == 2
    assert response.metadata == {"topic": "greeting"}
    assert (response.instructions, response.max_output_tokens) == ("Be brief.", 9)
    request = gateway.scripted.calls[0].request
    assert request.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "你好"},
    ]
    assert request.max_tokens == 9
    assert request.parameters == {"temperature": 0.5, "user": "u1"}


async def test_openais_package_streams(serve: Serve) -> None:
    async with client_of(await serve()) as client:
        async with client.responses.stream(model="chat", input="Hi") as stream:
            deltas = [e.delta async for e in stream if e.type == "response.output_text.delta"]
            final = await stream.get_final_response()
        assert deltas == ["Hel", "lo"]
        assert final.output_text == "Hello"
        assert (await client.responses.retrieve(final.id)).output_text == "Hello"


async def test_a_stream_s_head_and_frames(serve: Serve) -> None:
    gateway = await serve()
    response = await ask(gateway, stream=True)
    assert response.headers["content-type"] == "text/event-stream"
    assert response.headers["x-fewer-route"] == "chat"
    events = events_of(response.text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"
    assert "[DONE]" not in response.text
    whole = (await ask(gateway)).json()
    ignored = ("id", "created_at", "completed_at", "output")
    streamed = events[-1]["response"]
    assert {k: v for k, v in streamed.items() if k not in ignored} == {
        k: v for k, v in whole.items() if k not in ignored
    }


async def test_tools_over_two_turns(serve: Serve) -> None:
    gateway = await serve(backends=CALLS)
    async with client_of(gateway) as client:
        first = await client.responses.create(
            model="chat", input="北京天气?", tools=[WEATHER], parallel_tool_calls=False,
            tool_choice={"type": "function", "name": "weather"},
        )  # fmt: skip
        [item] = first.output
        assert item.type == "function_call"
        assert (item.call_id, item.arguments) == ("call_7", '{"city":"北京"}')
        second = await client.responses.create(
            model="chat", previous_response_id=first.id, tools=[WEATHER],
            input=[{"type": "function_call_output", "call_id": "call_7", "output": "sunny"}],
        )  # fmt: skip
    assert second.output_text == "It is sunny in 北京."
    sent, continued = (call.request for call in gateway.scripted.calls)
    said = {name: value for name, value in WEATHER.items() if name != "type"}
    assert sent.tools == [{"type": "function", "function": said}]
    assert sent.tool_choice == {"type": "function", "function": {"name": "weather"}}
    assert sent.parameters == {"parallel_tool_calls": False}
    assert continued.messages == [
        {"role": "user", "content": "北京天气?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_7",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city":"北京"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_7", "content": "sunny"},
    ]


async def test_what_goes_on_begins_with_the_bytes_that_were_sent(serve: Serve) -> None:
    gateway = await serve()
    previous = None
    for turn in range(3):
        fields: dict[str, Any] = {"previous_response_id": previous} if previous else {}
        answer = await ask(
            gateway, input=f"问题 {turn}", instructions="Be brief.", temperature=turn / 10, **fields
        )
        previous = answer.json()["id"]
    sent = [json.dumps(call.request.messages) for call in gateway.scripted.calls]
    assert len(sent) == 3
    assert all(later.startswith(sooner[:-1]) for sooner, later in itertools.pairwise(sent))
    messages = gateway.scripted.calls[-1].request.messages
    assert [message["content"] for message in messages] == [
        "Be brief.", "问题 0", "Hello", "问题 1", "Hello", "问题 2",
    ]  # fmt: skip


async def test_a_kept_response_can_be_asked_for_and_deleted(serve: Serve) -> None:
    async with client_of(await serve()) as client:
        first = await client.responses.create(model="chat", input="one")
        second = await client.responses.create(
            model="chat", input="two", previous_response_id=first.id
        )
        assert (await client.responses.retrieve(second.id)).to_dict() == second.to_dict()
        items: list[Any] = [
            i async for i in client.responses.input_items.list(second.id, order="asc", limit=1)
        ]
        assert [item.type for item in items] == ["message"] * 3
        assert [item.content[0].text for item in items] == ["one", "Hello", "two"]
        await client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError) as caught:
            await client.responses.retrieve(first.id)
        assert caught.value.code == "response_not_found"
        with pytest.raises(openai.NotFoundError):
            await client.responses.delete(first.id)
        # What went on from it stands by itself.
        third = await client.responses.create(
            model="chat", input="three", previous_response_id=second.id
        )
        assert third.output_text == "Hello"


async def test_newest_items_come_first_and_pages_follow(serve: Serve) -> None:
    gateway = await serve()
    given = [{"role": "user", "content": name} for name in "abc"]
    id = (await ask(gateway, input=given)).json()["id"]
    page = (await gateway.client.get(f"/v1/responses/{id}/input_items?limit=2")).json()
    assert [item["content"] for item in page["data"]] == ["c", "b"]
    assert page["has_more"] is True
    rest = await gateway.client.get(f"/v1/responses/{id}/input_items?after={page['last_id']}")
    assert [item["content"] for item in rest.json()["data"]] == ["a"]
    wrong = await gateway.client.get(f"/v1/responses/{id}/input_items?limit=0")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "limit")


async def test_store_false_keeps_nothing(serve: Serve) -> None:
    async with client_of(await serve()) as client:
        response = await client.responses.create(model="chat", input="Hi", store=False)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(response.id)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(
                model="chat", input="more", previous_response_id=response.id
            )
        assert caught.value.code == "previous_response_not_found"
        assert caught.value.param == "previous_response_id"


async def test_a_gateway_that_keeps_nothing_says_so(serve: Serve) -> None:
    gateway = await serve(keeping(store=Secret("none")))
    response = (await ask(gateway)).json()
    assert response["store"] is False
    assert (await gateway.client.get(f"/v1/responses/{response['id']}")).status_code == 404


async def test_nobody_finds_another_tenant_s_response(serve: Serve, tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keys.sqlite3")
    keys = [store.create(name).text for name in ("acme", "globex")]
    gateway = await serve(tenants=Tenants(store))
    async with client_of(gateway, keys[0]) as mine, client_of(gateway, keys[1]) as other:
        id = (await mine.responses.create(model="chat", input="secret")).id
        unknown = id[:-4] + "0000"
        told = []
        for wanted in (id, unknown):
            for act in (
                other.responses.retrieve, other.responses.delete, other.responses.cancel,
                other.responses.input_items.list,
            ):  # fmt: skip
                with pytest.raises(openai.NotFoundError) as caught:
                    await act(wanted)
                told.append(caught.value.body)
        texts = [json.dumps(body).replace(id, "ID").replace(unknown, "ID") for body in told]
        assert len(set(texts)) == 1
        with pytest.raises(openai.BadRequestError):
            await other.responses.create(model="chat", input="go on", previous_response_id=id)
        assert (await mine.responses.retrieve(id)).output_text == "Hello"


async def test_in_a_file_responses_outlast_the_gateway(serve: Serve, tmp_path: Path) -> None:
    config = keeping(store=Secret("sqlite"), deadline_ms=5000)
    config = msgspec.structs.replace(config, store=tmp_path / "fewer.sqlite3")
    id = (await ask(await serve(config))).json()["id"]
    assert (tmp_path / "fewer.responses.sqlite3").exists()
    again = await serve(config)
    assert (await again.client.get(f"/v1/responses/{id}")).json()["id"] == id


async def test_a_running_response_is_cancelled(serve: Serve) -> None:
    gateway = await serve(backends=HANGS)
    async with client_of(gateway) as client:
        stream = await client.responses.create(model="chat", input="Hi", stream=True)
        created = await anext(stream)
        assert created.type == "response.created"
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
        looked_at = await client.responses.retrieve(created.response.id)
        assert (looked_at.status, looked_at.output_text) == ("in_progress", "Hel")
        assert (await client.responses.cancel(created.response.id)).status == "cancelled"
        rest = [event async for event in stream]
        assert rest[-1].type == "response.incomplete"
        assert rest[-1].response.status == "cancelled"
        assert rest[-1].response.output_text == "Hel"
        await until(lambda: not gateway.scripted.running)
        assert len(gateway.scripted.cancelled) == 1
        kept = await client.responses.cancel(created.response.id)
        assert (kept.status, kept.output_text) == ("cancelled", "Hel")


async def test_whoever_waits_for_a_whole_response_hears_of_its_end(serve: Serve) -> None:
    gateway = await serve(backends=HANGS)
    waiting = asyncio.create_task(ask(gateway))
    await until(lambda: bool(gateway.scripted.running))
    id = f"resp_{gateway.scripted.calls[0].id}"
    assert (await gateway.client.post(f"/v1/responses/{id}/cancel")).status_code == 200
    assert (await waiting).json()["status"] == "cancelled"


async def test_one_that_left_leaves_nothing_running(serve: Serve) -> None:
    gateway = await serve(backends=HANGS)
    async with client_of(gateway) as client:
        stream = await client.responses.create(model="chat", input="Hi", stream=True)
        await anext(stream)
        await stream.close()
        await until(lambda: not gateway.scripted.running)
    assert len(gateway.scripted.cancelled) == 1


async def test_a_budget_that_ends_is_incomplete(serve: Serve) -> None:
    async with client_of(await serve()) as client:
        response = await client.responses.create(model="chat", input="Hi", max_output_tokens=1)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


async def test_a_failure_before_and_during_an_answer(serve: Serve) -> None:
    gateway = await serve(
        backends={
            "scripts": [
                [{"refuse": {"code": "overloaded", "retry_after_s": 2}}],
                [{"text": "Hel"}, {"fail": {"code": "upstream_failed"}}],
            ]
        }
    )
    async with client_of(gateway) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.responses.create(model="chat", input="Hi")
        assert caught.value.status_code == 503
        stream = await client.responses.create(model="chat", input="Hi", stream=True)
        *_, error, last = [event async for event in stream]
        with pytest.raises(openai.InternalServerError):
            await client.responses.create(model="chat", input="Hi")
    assert error.type == "error"
    assert error.code == "upstream_failed"
    assert last.type == "response.failed"


async def test_the_end_of_the_drain_is_told_in_band(serve: Serve) -> None:
    gateway = await serve(scripted_config(server=ServerConfig(drain_s=0.05)), backends=HANGS)
    async with client_of(gateway) as client:
        stream = await client.responses.create(model="chat", input="Hi", stream=True)
        await anext(stream)
        await until(lambda: bool(gateway.scripted.running))
        gateway.server.lifespan.state["drain"].start()
        *_, last = [event async for event in stream]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert "shutting down" in last.response.error.message


async def test_the_same_request_again_is_a_hit_with_an_id_of_its_own(serve: Serve) -> None:
    gateway = await serve()
    answers = [await ask(gateway, temperature=0) for _ in range(2)]
    assert [answer.headers["x-fewer-cache"] for answer in answers] == ["miss", "hit"]
    first, second = (answer.json() for answer in answers)
    assert first["id"] != second["id"]
    assert len(gateway.scripted.calls) == 1
    # A chat with the same messages is the same question.
    chat = await gateway.chat(temperature=0)
    assert chat.headers["x-fewer-cache"] == "hit"


async def test_a_store_that_is_away_costs_no_answer(serve: Serve, tmp_path: Path) -> None:
    config = keeping(store=Secret("redis://127.0.0.1:1/0"))
    gateway = await serve(config)
    answer = await ask(gateway)
    assert answer.status_code == 200
    assert answer.json()["store"] is False
    assert (await gateway.client.get("/v1/responses/resp_1")).status_code == 503


async def test_a_response_is_not_streamed_again(serve: Serve) -> None:
    answer = await (await serve()).client.get("/v1/responses/resp_1?stream=true")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "stream"
