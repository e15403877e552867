"""B01 with our engine: tokens of one byte each, as a grammar would force them, by both links."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from engine.protocol.frames import Event, Generate
from engine.protocol.sampling import Sampling
from tests.engine.server.test_link import linked
from tests.fakes.engine import fake_engine, serve
from tests.fakes.executor import HashExecutor

MANY_SCRIPTS = "Zażółć 🧵 👩‍🚀 終わり"
BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 64}


@pytest.fixture(autouse=True)
def _forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer is the text, byte by byte, and then an end token."""

    def next_token(
        self: HashExecutor,
        tokens: list[int],
        prompt_tokens: int,
        sampling: Sampling,
        key: int,
        masked: frozenset[int] = frozenset(),
    ) -> int:
        produced = len(tokens) - prompt_tokens
        forced: list[int] = [*MANY_SCRIPTS.encode(), self.end_id]
        return forced[produced]

    monkeypatch.setattr(HashExecutor, "next_token", next_token)


def whole_characters(pieces: list[str]) -> str:
    for piece in pieces:
        assert "\ufffd" not in piece
        piece.encode()  # raises for a lone surrogate
    return "".join(pieces)


async def test_over_http_streamed_and_whole() -> None:
    async with (
        serve(fake_engine()) as served,
        httpx2.AsyncClient(base_url=served.http, headers=served.headers) as session,
    ):
        whole = (await session.post("/v1/chat/completions", json=BODY)).json()
        streamed = await session.post("/v1/chat/completions", json=BODY | {"stream": True})
    assert whole["choices"][0]["message"]["content"] == MANY_SCRIPTS
    lines = [line for line in streamed.content.decode().split("\n") if line]
    assert lines.pop() == "data: [DONE]"
    deltas: list[Any] = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]
    assert whole_characters([d["delta"].get("content") or "" for d in deltas]) == MANY_SCRIPTS
    assert deltas[-1]["finish_reason"] == "stop"


async def test_over_the_websocket() -> None:
    async with serve(fake_engine()) as served, linked(served) as peer:
        await peer.send(Generate("r", messages=BODY["messages"], max_tokens=64))  # type: ignore[arg-type]
        answer = await peer.answer("r")
    assert whole_characters([e.text for e in answer if isinstance(e, Event)]) == MANY_SCRIPTS
