"""The client against a server that says exactly what a test wants it to say."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.arrivals import Arrival
from benchmarks.client import Client, Refused, connected
from benchmarks.jobs import Job
from benchmarks.open_loop import play
from benchmarks.prompts import Prompts
from benchmarks.running import EngineError, Server
from benchmarks.streams import side_by_side

Serve = Callable[..., Awaitable[Client]]


def chunk(text: str = "", finish: str | None = None, **more: Any) -> bytes:
    body = {"choices": [{"text": text, "finish_reason": finish}], **more}
    return b"data: " + orjson.dumps(body) + b"\n\n"


USAGE = b'data: {"choices": [], "usage": {"completion_tokens": 3}}\n\n'
DONE = b"data: [DONE]\n\n"


class Played:
    """A completions endpoint. asked: bodies it got; running, most: requests at once"""

    def __init__(self, parts: list[bytes], status: int = 200) -> None:
        self._parts, self._status = parts, status
        self.asked: list[dict[str, Any]] = []
        self.running = self.most = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(orjson.loads(await request.read()))
        self.running += 1
        self.most = max(self.most, self.running)
        response = web.StreamResponse(status=self._status, headers={"x-fewer-model": "small"})
        await response.prepare(request)
        for part in self._parts:
            await response.write(part)
            await asyncio.sleep(0)
        self.running -= 1
        return response


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Played], Awaitable[str]]]:
    servers: list[TestServer] = []

    async def start(played: Played) -> str:
        app = web.Application()
        app.router.add_post("/v1/completions", played.answer)
        servers.append(TestServer(app))
        await servers[-1].start_server()
        return str(servers[-1].make_url("/"))

    yield start
    for server in servers:
        await server.close()


async def test_pieces_of_text_are_timed_and_the_rest_is_not(
    serve: Callable[[Played], Awaitable[str]],
) -> None:
    played = Played([chunk("To"), chunk(""), chunk("kyo"), chunk("", "length"), USAGE, DONE])
    async with connected(await serve(played), model="chat") as client:
        answer = await client.ask([5, 6, 7], 3)
    assert len(answer.text_s) == 2
    assert 0 < answer.first_s <= answer.last_s
    assert (answer.prompt_tokens, answer.tokens, answer.model) == (3, 3, "small")
    assert played.asked[0]["prompt"] == [5, 6, 7]
    assert played.asked[0]["model"] == "chat"


async def test_an_answer_of_half_a_character_is_timed_by_its_end(
    serve: Callable[[Played], Awaitable[str]],
) -> None:
    async with connected(await serve(Played([chunk("", "length"), USAGE, DONE]))) as client:
        assert len((await client.ask([1], 1)).text_s) == 1


@pytest.mark.parametrize(
    ("played", "message"),
    [
        (Played([b'{"error": {"message": "too long"}}'], status=400), "too long"),
        (Played([b"gateway down"], status=502), "gateway down"),
        (Played([chunk("To"), b'data: {"error": {"message": "cut"}}\n\n']), "cut"),
        (Played([USAGE, DONE]), "without any text"),
    ],
)
async def test_refusals_say_why(
    serve: Callable[[Played], Awaitable[str]], played: Played, message: str
) -> None:
    async with connected(await serve(played)) as client:
        with pytest.raises(Refused, match=message):
            await client.ask([1], 1)


async def test_an_open_loop_counts_refusals_and_goes_on(
    serve: Callable[[Played], Awaitable[str]],
) -> None:
    arrivals = [Arrival(0.0, 4, 2), Arrival(0.0, 4, 2)]
    async with connected(await serve(Played([b"full"], status=503))) as client:
        outcome = await play(client, Prompts(range(99)), arrivals)
    assert (outcome.refused, outcome.answers) == (2, [])


async def test_an_open_loop_sends_what_was_drawn(
    serve: Callable[[Played], Awaitable[str]],
) -> None:
    played = Played([chunk("a"), USAGE, DONE])
    async with connected(await serve(played)) as client:
        outcome = await play(client, Prompts(range(99)), [Arrival(0.0, 4, 2), Arrival(0.001, 9, 1)])
    assert [len(body["prompt"]) for body in played.asked] == [4, 9]
    assert [body["max_tokens"] for body in played.asked] == [2, 1]
    assert len(outcome.answers) == 2


async def test_streams_side_by_side_ask_one_after_another(
    serve: Callable[[Played], Awaitable[str]],
) -> None:
    played = Played([chunk("a"), USAGE, DONE])
    async with connected(await serve(played)) as client:
        answers = await side_by_side(client, Prompts(range(999)), concurrency=3, requests_each=2)
    assert len(answers) == len(played.asked) == 6
    assert played.most <= 3


async def test_a_server_does_a_job_with_so_many_streams(
    serve: Callable[[Played], Awaitable[str]],
) -> None:
    played = Played([chunk("a"), chunk("b"), USAGE, DONE])
    server = Server(await serve(played), pid=0, version="played")
    job = Job([[1], [2], [3]], [2, 2, 2], concurrency=2)
    reply = await asyncio.to_thread(server.run, job)
    assert sorted(body["prompt"] for body in played.asked) == [[1], [2], [3]]
    assert (len(reply.first_s), len(reply.gaps_s)) == (3, 3)
    assert played.most <= 2
    assert reply.seconds >= max(reply.first_s)


async def test_a_server_is_waited_for_until_its_first_token(
    serve: Callable[[Played], Awaitable[str]],
) -> None:
    played = Played([chunk("a"), USAGE, DONE])
    server = Server(await serve(played), pid=os.getpid(), version="played")
    await asyncio.to_thread(server.wake, [1, 2])
    assert [body["max_tokens"] for body in played.asked] == [1]


def test_a_server_that_ended_shows_what_it_said_last(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", ""]) as ended:
        ended.wait()
    (tmp_path / "log").write_text("no such model")
    server = Server("http://127.0.0.1:9", ended.pid, "peer 1", tmp_path / "log")
    with pytest.raises(EngineError, match="peer 1 did not start: no such model"):
        server.wake([1])


async def test_nothing_that_listens_is_an_error_of_the_connection() -> None:
    async with connected("http://127.0.0.1:9") as client:
        with pytest.raises(aiohttp.ClientError):
            await client.ask([1], 1)
