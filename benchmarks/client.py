"""A streaming client of any server that speaks OpenAI's completions, with its own clock."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import aiohttp
import orjson

TIMEOUT_S = 600.0


class Refused(Exception):
    """The server answered with an error, before or in the middle of its answer."""


@dataclass(slots=True)
class Answer:
    """When one answer came, in the client's own time.

    prompt_tokens: that were sent
    sent_s:        on the monotonic clock
    text_s:        when each piece of text arrived, from the sending
    tokens:        produced, as the server metered them
    model:         which the gateway says has answered, where it does
    """

    prompt_tokens: int
    sent_s: float
    text_s: list[float] = field(default_factory=list)
    tokens: int = 0
    model: str = ""

    @property
    def first_s(self) -> float:
        return self.text_s[0]

    @property
    def last_s(self) -> float:
        return self.text_s[-1]

    @property
    def gaps_s(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.text_s)]

    @property
    def tokens_per_s(self) -> float:
        """After the first token."""
        return (self.tokens - 1) / (self.last_s - self.first_s)


class Client:
    """Asks for greedy answers of an exact length. Prompts are token ids, so theirs is exact too.

    model: named in each request; left out where it is empty
    """

    def __init__(self, session: aiohttp.ClientSession, model: str = "") -> None:
        self._session = session
        self._model = model

    async def ask(self, prompt: Sequence[int], tokens: int) -> Answer:
        """Raises `Refused`, and aiohttp's errors when the connection fails."""
        body: dict[str, Any] = {
            "prompt": list(prompt),
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._model:
            body["model"] = self._model
        data = orjson.dumps(body)
        answer = Answer(len(prompt), time.monotonic())
        async with self._session.post("/v1/completions", data=data) as response:
            if response.status != 200:
                raise Refused(_reason(await response.read()))
            answer.model = response.headers.get("x-fewer-model", self._model)
            async for line in response.content:
                if line.startswith(b"data: {"):
                    _note(answer, orjson.loads(line[6:]))
        if not answer.text_s:
            raise Refused("The answer ended without any text.")
        return answer


@asynccontextmanager
async def connected(url: str, *, key: str = "", model: str = "") -> AsyncIterator[Client]:
    """A client of the server at `url`, with a connection for each request."""
    # Every answer is to be made: greedy requests that repeat would be answered from the cache.
    headers = {"content-type": "application/json", "cache-control": "no-cache, no-store"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    async with aiohttp.ClientSession(
        url,
        headers=headers,
        # llama.cpp's server closes a connection after an answer, now and then in use again.
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
    ) as session:
        yield Client(session, model)


def _note(answer: Answer, chunk: dict[str, Any]) -> None:
    if error := chunk.get("error"):
        raise Refused(str(error["message"]))
    choices = chunk.get("choices") or []
    # A token that is half a character has no text of its own; as the last one it ends the answer.
    ended = not answer.text_s and any(choice.get("finish_reason") for choice in choices)
    if ended or any(choice.get("text") for choice in choices):
        answer.text_s.append(time.monotonic() - answer.sent_s)
    if usage := chunk.get("usage"):
        answer.tokens = usage["completion_tokens"]


def _reason(body: bytes) -> str:
    """The message of an error in OpenAI's shape; else the body's beginning."""
    try:
        return str(orjson.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
