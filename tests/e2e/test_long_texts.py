"""Texts far too long: refused by their size, while everybody else goes on."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.e2e.stack import DEADLINE_S, TOKEN, Stack

pytestmark = pytest.mark.model

RUNS = {"x": 200_000, "^": 1_000_000, " ": 1_000_000, "\n": 1_000_000, "🧵": 200_000}
POLL_S = 0.05


def refused_s(url: str, fields: dict[str, Any]) -> float:
    """How long the server took to say that the text does not fit."""
    data = json.dumps(fields, ensure_ascii=False).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
    began = time.monotonic()
    with pytest.raises(HTTPError) as caught:
        urlopen(Request(url, data, headers), timeout=DEADLINE_S)
    taken_s = time.monotonic() - began
    with caught.value as error:
        said = json.load(error)["error"]
    assert (error.code, said["code"]) == (400, "context_length_exceeded")
    assert "512 tokens" in said["message"]
    return taken_s


class Clock:
    """Notes the longest time between two ticks."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._last_s: float | None = None

    def tick(self) -> None:
        now_s = time.monotonic()
        if self._last_s is not None:
            self.longest_s = max(self.longest_s, now_s - self._last_s)
        self._last_s = now_s


@contextmanager
def running(work: Callable[[Callable[[], bool]], None]) -> Iterator[None]:
    """`work(ended)` in a thread, until the block has ended."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over.is_set,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("character", RUNS)
def test_a_run_of_one_character_holds_nobody_up(stack: Stack, character: str) -> None:
    """B17: chat, completions and counting, at both servers, beside a stream and health checks."""
    text = character * RUNS[character]
    gaps, polls_s = Clock(), []

    def read(ended: Callable[[], bool]) -> None:
        while not ended():
            gaps.tick()
            for _ in stack.stream("Tell a story.", max_tokens=100, ignore_eos=True):
                gaps.tick()
                if ended():
                    break

    def poll(ended: Callable[[], bool]) -> None:
        while not ended():
            for url in (f"{stack.gateway}/health/live", f"{stack.engine}/health/ready"):
                began = time.monotonic()
                request = Request(url, headers={"authorization": f"Bearer {TOKEN}"})
                urlopen(request, timeout=DEADLINE_S).close()
                polls_s.append(time.monotonic() - began)
            time.sleep(POLL_S)

    chat = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
    with running(read), running(poll):
        taken_s = [
            refused_s(f"{server}{path}", fields)
            for server, path, fields in (
                (stack.gateway, "/v1/chat/completions", {"model": "chat"} | chat),
                (stack.gateway, "/v1/completions", {"model": "chat", "prompt": text}),
                (stack.engine, "/v1/chat/completions", chat),
                (stack.engine, "/v1/completions", {"prompt": text}),
                (stack.engine, "/tokenize", {"prompt": text}),
                (stack.engine, "/tokenize", {"messages": chat["messages"]}),
            )
        ]
    assert max(taken_s) < 1.0
    assert gaps.longest_s < 0.2
    assert sorted(polls_s)[int(len(polls_s) * 0.99) - 1] < 0.1
