"""Both doors of an engine of ours, from the gateway's side: its WebSocket and its event streams.

The engine's server and core are real, the model is a hash: so the two ends are held to the same
protocol, without a model file.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from engine.protocol.errors import ContextLengthExceeded, FewerError, InvalidRequest, Unavailable
from engine.protocol.frames import Accepted, Event
from gateway.backends.base import Backend, Call
from gateway.backends.engine import EngineBackend
from gateway.backends.link import Timing
from gateway.backends.openai import OpenAIBackend
from tests.fakes.calls import chat_call, completion_call, drain, finishes, text_of
from tests.fakes.clock import FakeClock
from tests.fakes.engine import LETTERS, MODEL, TOKEN, Gate, Served, fake_engine, serve, until

SEEDED: dict[str, Any] = {"allowed_token_ids": LETTERS, "seed": 7, "temperature": 1}


@asynccontextmanager
async def both(**options: Any) -> AsyncIterator[tuple[Served, EngineBackend, OpenAIBackend]]:
    async with serve(fake_engine(**options)) as served:
        link = EngineBackend("small", served.link, TOKEN)
        http = OpenAIBackend("small", f"{served.http}/v1", model=MODEL, api_key=TOKEN)
        try:
            yield served, link, http
        finally:
            await asyncio.gather(link.aclose(), http.aclose())


@pytest.mark.parametrize("make", [chat_call, completion_call])
async def test_both_doors_give_the_same_answer(make: Any) -> None:
    async with both() as (_, link, http):
        answers = []
        for backend in (link, http):
            call: Call = make("r1", max_tokens=20, n=2, parameters=SEEDED)
            events = await drain(await backend.generate(call))
            last = events[-1]
            assert isinstance(last, Event)
            assert last.usage is not None
            assert last.usage.completion_tokens == 40
            assert finishes(events) == {0: "length", 1: "length"}
            seeds = {e.choice: e.seed for e in events if isinstance(e, Event) and e.seed}
            answers.append(
                (text_of(events, 0), text_of(events, 1), seeds, last.usage.prompt_tokens)
            )
    assert answers[0] == answers[1]
    assert len(answers[0][0]) == 20


async def test_a_prediction_is_verified_through_both_doors() -> None:
    """What it saves is told in the usage, and nothing else of the answer changes."""
    async with both(speculation="auto", clock=FakeClock()) as (_, link, http):
        for backend in (link, http):
            plain = await drain(await backend.generate(_predicted(None)))
            guessed = await drain(await backend.generate(_predicted(text_of(plain))))
            assert text_of(guessed) == text_of(plain)
            last = guessed[-1]
            assert isinstance(last, Event)
            assert last.usage is not None
            assert last.usage.completion_tokens == 40
            assert last.usage.accepted_prediction_tokens > 30


def _predicted(text: str | None) -> Call:
    parts = [{"type": "text", "text": text}]
    prediction = {} if text is None else {"prediction": {"type": "content", "content": parts}}
    id = "plain" if text is None else "guessed"
    return chat_call(id, max_tokens=40, parameters=SEEDED | prediction)


async def test_the_link_accepts_before_it_answers() -> None:
    async with both() as (_, link, _http):
        stream = await link.generate(chat_call("r1", max_tokens=3))
        (first, *_) = await drain(stream)
        assert isinstance(first, Accepted)
        assert first.prompt_tokens > 0


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"max_tokens": 100_000}, ContextLengthExceeded, None),
        ({"messages": [{"role": "user", "content": "refuse me"}]}, InvalidRequest, "messages"),
        ({"parameters": {"logit_bias": {"999999": 1}}}, InvalidRequest, "logit_bias"),
    ],
)
async def test_refusals_mean_the_same_at_both_doors(
    fields: dict[str, Any], kind: type[FewerError], param: str | None
) -> None:
    async with both() as (_, link, http):
        told = []
        for backend in (link, http):
            with pytest.raises(kind) as refused:
                await backend.generate(chat_call("r1", **fields))
            told.append((refused.value.message, refused.value.param))
        assert told[0] == told[1]
        assert param is None or told[0][1] == param


async def test_two_hundred_streams_cut_at_random_leave_nothing() -> None:
    gate = Gate()
    async with both(on_run=gate, max_num_seqs=16) as (served, link, http):
        gate.open()
        dice = random.Random(1)

        async def client(number: int, backend: Backend) -> None:
            call = chat_call(f"r{number}", max_tokens=500, parameters=SEEDED)
            stream = await backend.generate(call)
            try:
                for _ in range(dice.randrange(6)):
                    await stream.receive()
            finally:
                await stream.aclose()

        clients = [
            asyncio.create_task(client(number, (link, http)[number % 2])) for number in range(200)
        ]
        for task in clients[::5]:
            await asyncio.sleep(0)
            task.cancel()
        ended = await asyncio.gather(*clients, return_exceptions=True)
        assert {type(error) for error in ended} <= {type(None), asyncio.CancelledError}
        await until(served.drained)


async def test_a_wrong_token_gets_nothing_at_either_door() -> None:
    async with serve(fake_engine()) as served:
        link = EngineBackend("small", served.link, "wrong", timing=Timing(wait_s=0.2))
        http = OpenAIBackend("small", f"{served.http}/v1", model=MODEL, api_key="wrong")
        with pytest.raises(Unavailable):
            await link.generate(chat_call())
        with pytest.raises(FewerError, match="refused the gateway's credentials"):
            await http.generate(chat_call())
        await asyncio.gather(link.aclose(), http.aclose())
        assert served.drained()
