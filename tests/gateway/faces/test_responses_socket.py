"""The WebSocket mode of `/v1/responses`: lanes, errors that the socket outlives, and its ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from gateway.config import ServerConfig
from gateway.faces import responses_socket
from gateway.stores.keys import KeyStore
from gateway.tenants import Tenants
from tests.fakes.serving import Gateway, Serve, running, scripted_config, until

HANGS = {"steps": [{"text": "Hel"}, {"hang": True}]}
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
MANNERS = ("leave", "cancel", "read", "flood", "abort")


class Socket:
    """One connection to a gateway."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, type: str = "response.create", **fields: Any) -> None:
        await self.connection.send(json.dumps({"type": type} | fields))

    async def create(self, **fields: Any) -> None:
        await self.send(**({"model": "chat", "input": "Hi"} | fields))

    async def next(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(await self.connection.recv())
        return event

    async def answer(self) -> list[dict[str, Any]]:
        """The events up to one that ends a response."""
        events = [await self.next()]
        while events[-1]["type"] not in ENDS:
            events.append(await self.next())
        return events

    async def until(self, type: str) -> dict[str, Any]:
        while (event := await self.next())["type"] != type:
            pass
        return event

    async def close_code(self) -> int | None:
        """What it is closed with, once everything was read."""
        with contextlib.suppress(ConnectionClosedError):
            async for _ in self.connection:
                pass
        return self.connection.close_code


@contextlib.asynccontextmanager
async def opened(gateway: Gateway, key: str = "") -> AsyncIterator[Socket]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = f"ws://127.0.0.1:{gateway.port}/v1/responses"
    # A client whose queue is full does not hear of its close.
    async with connect(url, additional_headers=headers, close_timeout=0.3) as connection:
        yield Socket(connection)


async def test_openais_package_goes_on_over_one_socket(serve: Serve) -> None:
    gateway = await serve()
    async with (
        openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key="none", max_retries=0
        ) as client,
        client.responses.connect() as connection,
    ):
        previous = None
        for text in ("你好", "more"):
            fields: Any = {"previous_response_id": previous} if previous else {}
            await connection.response.create(model="chat", input=text, store=False, **fields)
            deltas = []
            async for event in connection:
                if event.type == "response.output_text.delta":
                    deltas.append(event.delta)
                if event.type == "response.completed":
                    previous = event.response.id
                    break
            assert deltas == ["Hel", "lo"]
    first, second = (call.request.messages for call in gateway.scripted.calls)
    assert second[:1] == first
    assert [message["content"] for message in second] == ["你好", "Hello", "more"]
    assert (await gateway.client.get(f"/v1/responses/{previous}")).status_code == 404


async def test_events_are_those_of_the_stream_with_numbers_and_lane(serve: Serve) -> None:
    async with opened(await serve()) as socket:
        await socket.create(stream=True, stream_id="a.1", client_metadata={"x": 1})
        events = await socket.answer()
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert {event["stream_id"] for event in events} == {"a.1"}
        assert events[0]["type"] == "response.created"
        assert events[-1]["type"] == "response.completed"
        await socket.create()
        assert all("stream_id" not in event for event in await socket.answer())


async def test_one_lane_is_in_order_and_others_go_on(serve: Serve) -> None:
    script = {"scripts": [HANGS["steps"], [{"text": "b"}], [{"text": "a2"}]]}
    gateway = await serve(backends=script)
    async with opened(gateway) as socket:
        await socket.create(stream_id="a", input="first")
        await socket.until("response.output_text.delta")
        await socket.create(stream_id="a", input="second")
        await socket.create(stream_id="b", input="other")
        events = await socket.answer()
        assert (events[-1]["stream_id"], events[-1]["type"]) == ("b", "response.completed")
        assert len(gateway.scripted.calls) == 2
        await socket.send("response.cancel")
        cancelled, then = await socket.answer(), await socket.answer()
        assert cancelled[-1]["response"]["status"] == "cancelled"
        assert then[-1]["response"]["output"][0]["content"][0]["text"] == "a2"
        assert gateway.scripted.calls[2].request.messages[0]["content"] == "second"


async def test_a_warm_up_reads_the_prompt_and_can_be_gone_on_from(serve: Serve) -> None:
    gateway = await serve()
    async with opened(gateway) as socket:
        await socket.create(input="long", generate=False)
        events = await socket.answer()
        assert [event["type"] for event in events] == [
            "response.created", "response.in_progress", "response.completed",
        ]  # fmt: skip
        assert events[-1]["response"]["output"] == []
        assert gateway.scripted.calls[0].request.max_tokens == 1
        await socket.create(input="go", previous_response_id=events[-1]["response"]["id"])
        await socket.answer()
    contents = [message["content"] for message in gateway.scripted.calls[1].request.messages]
    assert contents == ["long", "go"]


@pytest.mark.parametrize(
    ("frame", "code", "param"),
    [
        ("{", "invalid_value", None),
        ("[]", "invalid_value", None),
        (b"\x00", "invalid_value", None),
        ('{"type": "response.shout"}', "unknown_event", "type"),
        ('{"type": 5}', "unknown_event", "type"),
        ('{"type": "response.create", "stream_id": "a b"}', "invalid_stream_id", "stream_id"),
        ('{"type": "response.create", "generate": "no"}', "invalid_value", "generate"),
        ('{"type": "response.create"}', "invalid_value", "input"),
        (
            '{"type": "response.create", "input": "x", "background": true}',
            "invalid_value",
            "background",
        ),
        ('{"type": "response.create", "input": "x", "model": "none"}', "model_not_found", "model"),
        (
            '{"type": "response.create", "input": "x", "previous_response_id": "resp_0"}',
            "previous_response_not_found",
            "previous_response_id",
        ),
        (
            '{"type": "response.cancel", "response_id": "resp_0"}',
            "response_not_found",
            "response_id",
        ),
    ],
)
async def test_a_wrong_frame_is_an_error_that_the_socket_outlives(
    serve: Serve, frame: str | bytes, code: str, param: str | None
) -> None:
    async with opened(await serve()) as socket:
        await socket.connection.send(frame)
        error = await socket.next()
        assert error["type"] == "error"
        assert error["status"] in (400, 404)
        assert (error["error"]["code"], error["error"]["param"]) == (code, param)
        assert error["error"]["message"]
        await socket.create()
        assert (await socket.answer())[-1]["type"] == "response.completed"


async def test_steering_is_refused_as_clients_expect(serve: Serve) -> None:
    async with opened(await serve()) as socket:
        await socket.send("response.steer", previous_response_id="resp_1", input="faster")
        refused = await socket.next()
    assert refused["type"] == "response.steer.failed"
    assert refused["error"]["code"] == "steering_not_supported"
    assert refused["steer"] == {"previous_response_id": "resp_1", "input": "faster"}


async def test_failures_before_and_during_an_answer(serve: Serve) -> None:
    script = {
        "scripts": [
            [{"refuse": {"code": "overloaded"}}],
            [{"text": "Hel"}, {"fail": {"code": "upstream_failed"}}],
            [{"text": "fine"}],
        ]
    }
    async with opened(await serve(backends=script)) as socket:
        await socket.create(stream_id="a")
        [refused] = await socket.answer()
        assert (refused["status"], refused["stream_id"]) == (503, "a")
        assert refused["error"]["code"] == "server_is_overloaded"
        await socket.create(input="2")
        failed = await socket.answer()
        assert [event["type"] in ENDS for event in failed].count(True) == 1
        assert failed[-1]["type"] == "response.failed"
        assert failed[-1]["response"]["error"]["code"] == "server_error"
        await socket.create(input="3")
        assert (await socket.answer())[-1]["type"] == "response.completed"


async def test_a_failed_continuation_forgets_what_it_went_on_from(serve: Serve) -> None:
    async with opened(await serve()) as socket:
        await socket.create(store=False)
        id = (await socket.answer())[-1]["response"]["id"]
        await socket.create(previous_response_id=id, temperature="hot")
        assert (await socket.answer())[-1]["error"]["param"] == "temperature"
        await socket.create(previous_response_id=id)
        assert (await socket.answer())[-1]["error"]["code"] == "previous_response_not_found"


async def test_more_than_may_wait_and_more_lanes_are_refused(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses_socket, "MAX_WAITING", 2)
    monkeypatch.setattr(responses_socket, "MAX_LANES", 1)
    async with opened(await serve(backends=HANGS)) as socket:
        await socket.create(stream_id="a")
        await socket.create(stream_id="b")
        error = await socket.until("error")
        assert error["error"]["code"] == "websocket_stream_limit_reached"
        assert "lanes" in error["error"]["message"]
        await socket.create(stream_id="a")
        await socket.create(stream_id="a")
        error = await socket.until("error")
        assert "run or wait" in error["error"]["message"]


async def test_whoever_closes_it_ends_all_that_runs(serve: Serve) -> None:
    gateway = await serve(backends=HANGS)
    async with opened(gateway) as socket:
        for lane in ("a", "b"):
            await socket.create(stream_id=lane, input=lane)
        await until(lambda: len(gateway.scripted.running) == 2)
    await until(lambda: not gateway.scripted.running)
    assert len(gateway.scripted.cancelled) == 2


async def test_a_key_is_needed_and_must_stay_good(serve: Serve, tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keys.sqlite3")
    made = store.create("acme")
    gateway = await serve(tenants=Tenants(store))
    with pytest.raises(InvalidStatus) as caught:
        async with opened(gateway, "fw-wrong"):
            pass
    assert caught.value.response.status_code == 401
    async with opened(gateway, made.text) as socket:
        await socket.create()
        assert (await socket.answer())[-1]["type"] == "response.completed"
        store.revoke(made.key.id)
        await socket.create()
        assert (await socket.answer())[-1]["status"] == 401
        assert await socket.close_code() == 1008


async def test_a_drain_lets_what_runs_finish_and_closes(serve: Serve) -> None:
    script = {"steps": [{"text": "Hel"}, {"delay_s": 0.2, "text": "lo"}]}
    gateway = await serve(backends=script)
    async with opened(gateway) as idle, opened(gateway) as busy:
        await busy.create()
        await busy.until("response.output_text.delta")
        gateway.server.lifespan.state["drain"].start()
        assert await idle.close_code() == 1012
        await busy.create(input="late", stream_id="b")
        events = await busy.answer()
        assert events[-1]["error"]["code"] == "server_is_overloaded"
        assert (await busy.answer())[-1]["type"] == "response.completed"
        assert await busy.close_code() == 1012
        with pytest.raises(InvalidStatus) as caught:
            async with opened(gateway):
                pass
        assert caught.value.response.status_code == 503


async def test_with_a_new_configuration_clients_connect_again(serve: Serve) -> None:
    gateway = await serve()
    async with opened(gateway) as socket:
        await socket.create()
        await socket.answer()
        gateway.exchange(scripted_config(budget=1))
        assert await socket.close_code() == 1012
    async with opened(gateway) as socket:
        await socket.create()
        assert (await socket.answer())[-1]["type"] == "response.incomplete"


async def test_the_server_s_shutdown_is_a_drain(serve: Serve) -> None:
    gateway = await serve(backends={"steps": [{"text": "Hel"}, {"delay_s": 0.2, "text": "lo"}]})
    async with opened(gateway) as socket:
        await socket.create()
        await socket.until("response.output_text.delta")
        for connection in list(gateway.server.server_state.connections):
            connection.shutdown()
        assert (await socket.answer())[-1]["type"] == "response.completed"
        assert await socket.close_code() == 1012


async def test_the_end_of_the_drain_fails_what_still_runs(serve: Serve) -> None:
    gateway = await serve(scripted_config(server=ServerConfig(drain_s=0.05)), backends=HANGS)
    async with opened(gateway) as socket:
        await socket.create()
        await socket.until("response.output_text.delta")
        gateway.server.lifespan.state["drain"].start()
        assert (await socket.answer())[-1]["type"] == "response.failed"
        assert await socket.close_code() == 1012


async def test_an_oversized_frame_is_1009(serve: Serve) -> None:
    gateway = await serve(scripted_config(server=ServerConfig(max_body_bytes=1000)))
    async with opened(gateway) as socket:
        await socket.create(input="x" * 2000)
        assert await socket.close_code() == 1009


async def test_a_client_that_does_not_read_is_cut_off_and_pauses_its_request(
    serve: Serve,
) -> None:
    long = {"steps": [{"text": "herb " * 2000, "repeat": 3000}]}
    config = scripted_config(server=ServerConfig(slow_reader_s=0.3))
    gateway = await serve(config, backends=long)
    url = f"ws://127.0.0.1:{gateway.port}/v1/responses"
    async with connect(url, max_queue=1, compression=None, close_timeout=0.1) as connection:
        socket = Socket(connection)
        await socket.create()
        await until(lambda: bool(gateway.scripted.running))
        await asyncio.wait_for(until(lambda: not gateway.scripted.running), 20)
    assert len(gateway.scripted.cancelled) == 1


@settings(max_examples=5, deadline=None)
@given(st.lists(st.sampled_from(MANNERS), min_size=8, max_size=16))
async def test_whatever_clients_do_nothing_runs_on_and_others_are_answered(
    manners: list[str],
) -> None:
    script = {"steps": [{"delay_s": 0.002, "text": "herb ", "repeat": 20}]}
    async with running(backends=script) as gateway:

        async def visit(manner: str) -> None:
            async with opened(gateway) as socket:
                await socket.create(input=manner, stream_id="a")
                if manner == "flood":
                    for number in range(40):
                        await socket.create(input=str(number), stream_id="b")
                if manner == "leave":
                    return
                await socket.until("response.created")
                if manner == "cancel":
                    await socket.send("response.cancel")
                if manner == "abort":
                    socket.connection.transport.abort()
                    return
                events = [await socket.next()]
                while events[-1].get("stream_id") != "a" or events[-1]["type"] not in ENDS:
                    events.append(await socket.next())
                if manner == "read":
                    assert events[-1]["type"] == "response.completed"

        await asyncio.gather(*map(visit, manners))
        await until(lambda: not gateway.scripted.running)
        assert (await gateway.chat(temperature=1)).status_code == 200
