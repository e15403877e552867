"""The engine's server over the real model: answers, cuts, and counts beside a running stream."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from engine.assembly import open_engine
from engine.protocol.frames import Cancel, Count, Counted, Events, Generate
from engine.protocol.sampling import Sampling
from engine.protocol.settings import EngineSettings
from tests.engine.server.test_link import Peer, linked
from tests.fakes.engine import TOKEN, Served, serve, until

pytestmark = pytest.mark.model

NAME = "smollm2-135m"
JAPAN: list[dict[str, Any]] = [{"role": "user", "content": "What is the capital of Japan?"}]
HERBS = [{"role": "user", "content": "List forty garden herbs with one line each."}]


@pytest.fixture
async def served(model_path: Path) -> AsyncIterator[Served]:
    settings = EngineSettings(max_model_len=8192, kv_cache_mb=256, threads=1)
    async with serve(open_engine(model_path, settings, name=NAME)) as served:
        yield served


async def test_the_openai_package_whole_streamed_cut_and_counted(served: Served) -> None:
    client: Any = openai.AsyncOpenAI(base_url=f"{served.http}/v1", api_key=TOKEN, timeout=120)
    async with client:
        whole = await _whole(client)
        assert "Tokyo" in whole
        assert await _streamed(client) == whole
        await _cut_by_the_limit(client)
        await _abandoned(client, served)
    await _counted_beside_a_stream(served)


async def _whole(client: Any) -> str:
    answer = await client.chat.completions.create(
        model=NAME, messages=JAPAN, max_tokens=20, temperature=0
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    assert choice.message.role == "assistant"
    text: str = choice.message.content
    return text


async def _streamed(client: Any) -> str:
    stream = await client.chat.completions.create(
        model=NAME, messages=JAPAN, max_tokens=20, temperature=0, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = [chunk async for chunk in stream]
    # The same prompt again: all its full blocks are in the prefix cache.
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 32
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


async def _cut_by_the_limit(client: Any) -> None:
    answer = await client.chat.completions.create(model=NAME, messages=HERBS, max_tokens=5)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 5


async def _abandoned(client: Any, served: Served) -> None:
    """Streams left at moments that differ, some before their first token."""
    moments = random.Random(2)

    async def leave() -> None:
        try:
            async with asyncio.timeout(moments.uniform(0.0, 1.0)):
                stream = await client.chat.completions.create(
                    model=NAME, messages=HERBS, max_tokens=500, stream=True
                )
                async for _ in stream:
                    pass
        except TimeoutError:
            pass

    await asyncio.gather(*(leave() for _ in range(20)))
    await until(served.drained, 20)


async def _counted_beside_a_stream(served: Served) -> None:
    """B17: counting half a million characters delays no health check and no stream."""
    delays: list[float] = []
    moments: list[float] = []

    async def read(stream: Peer) -> None:
        while True:
            if isinstance(await stream.receive(), Events):
                moments.append(time.monotonic())

    async with (
        linked(served) as peer,
        linked(served) as other,
        httpx2.AsyncClient(base_url=served.http, headers=served.headers) as session,
    ):
        await session.get("/health")
        endless = Sampling(ignore_eos=True)
        await other.send(Generate("r", messages=HERBS, max_tokens=900, sampling=endless))
        reading = asyncio.create_task(read(other))
        await until(lambda: len(moments) > 3, 20)
        await peer.send(Count("c", text="^" * 500_000))
        counted = asyncio.create_task(peer.answer("c"))
        while not counted.done():
            began = time.monotonic()
            assert (await session.get("/health")).status_code == 200
            delays.append(time.monotonic() - began)
            await asyncio.sleep(0.01)
        assert counted.result() == [Counted("c", 125_000)]
        seen = len(moments)
        await until(lambda: len(moments) > seen, 20)
        reading.cancel()
        await other.send(Cancel("r"))
    await until(served.drained, 20)
    assert sorted(delays)[int(len(delays) * 0.99) - 1] < 0.1
    assert max(after - before for before, after in pairwise(moments)) < 0.2
