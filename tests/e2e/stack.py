"""A running stack with the real model, and a plain client of both of its servers."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.fakes.service import Service

TOKEN = "shared-by-both"
CONFIG = """
server: {header_timeout_s: 1}
store: sqlite:keys.sqlite3
engine: {max_model_len: 512, kv_cache_mb: 128, threads: 1}
models:
  small: {gguf: "${MODEL}"}
  over-sse: {openai: "http://127.0.0.1:${ENGINE_PORT}/v1", model: small, api_key: "${TOKEN}"}
routes:  # without what is built in, but one: every answer is to be made
  chat:
    model: small
    budget: {max_tokens: 256}
    cache: {exact: {mode: disabled}}
    coalesce: {mode: disabled}
  chat-over-sse:
    model: over-sse
    budget: {max_tokens: 256}
    cache: {exact: {mode: disabled}}
    coalesce: {mode: disabled}
  short:
    model: small
    budget: {max_tokens: 5}
    cache: {exact: {mode: disabled}}
    coalesce: {mode: disabled}
  short-over-sse:
    model: over-sse
    budget: {max_tokens: 5}
    cache: {exact: {mode: disabled}}
    coalesce: {mode: disabled}
  shared: {model: small}
  remembering:
    model: small
    history: {strategy: summary, high_tokens: 300, low_tokens: 160, summary_tokens: 40, holdout: 0}
default_route: chat
"""
JAPAN = "What is the capital of Japan?"
DEADLINE_S = 30.0
POLL_S = 0.05
LOAD = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_ratio")


@dataclass(frozen=True)
class Stack:
    """gateway, engine: base URLs of the two servers"""

    service: Service
    gateway: str
    engine: str

    def ask(self, text: str = JAPAN, *, at: str | None = None, **fields: Any) -> dict[str, Any]:
        """A whole completion, by default with the likeliest answer, from the gateway."""
        with urlopen(_request(at or self.gateway, text, fields), timeout=DEADLINE_S) as response:
            completion: dict[str, Any] = json.load(response)
            return completion

    def stream(self, text: str = JAPAN, *, at: str | None = None, **fields: Any) -> Iterator[Any]:
        """The chunks of a streamed completion, as they come; the stream must end in [DONE]."""
        request = _request(at or self.gateway, text, {**fields, "stream": True})
        with urlopen(request, timeout=DEADLINE_S) as response:
            for line in response:
                if line == b"data: [DONE]\n":
                    return
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))
        raise AssertionError("The stream ended without [DONE].")

    def refused(self, **fields: Any) -> HTTPError | None:
        """The gateway's refusal of a short question; None when it answered."""
        try:
            self.ask(max_tokens=1, **fields)
        except HTTPError as error:
            with error:
                error.read()
            return error
        return None

    def refusal(self, text: str = JAPAN, *, at: str | None = None, **fields: Any) -> Any:
        """The error object of a question that must be refused with a 400."""
        with pytest.raises(HTTPError) as caught:
            self.ask(text, at=at, **fields)
        with caught.value as error:
            assert error.code == 400
            return json.load(error)["error"]

    def is_ready(self) -> bool:
        """Whether the gateway can serve the route of its engine's WebSocket."""
        try:
            response = urlopen(f"{self.gateway}/health/ready", timeout=DEADLINE_S)
        except HTTPError as error:
            response = error
        with response:
            return bool(json.load(response)["routes"]["chat"])

    def load(self) -> tuple[float, ...]:
        """Running, waiting, and the share of KV blocks in use, as the engine tells everybody."""
        return tuple(self.counter(name) for name in LOAD)

    def counter(self, name: str, at: str | None = None) -> float:
        """A metric without its `fewer_`, by default of the engine; its labels included."""
        url = f"{at or self.engine}/metrics"
        request = Request(url, headers={"authorization": f"Bearer {TOKEN}"})
        with urlopen(request, timeout=DEADLINE_S) as response:
            text = response.read().decode()
        found = re.search(rf"^fewer_{re.escape(name)} (\S+)$", text, re.MULTILINE)
        assert found is not None, f"no metric {name}"
        return float(found[1])

    def wait_idle(self) -> None:
        """Wait until nothing runs or waits and no KV block is in use."""
        wait_for(lambda: self.load() == (0.0, 0.0, 0.0), "the engine to be idle")


def faces(stack: Stack) -> list[dict[str, Any]]:
    """What makes a question go over the WebSocket, over SSE, and to the engine alone."""
    return [{"model": "chat"}, {"model": "chat-over-sse"}, {"model": "small", "at": stack.engine}]


def content(chunks: Iterator[Any]) -> str:
    """The text of a streamed completion."""
    return "".join(
        choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]
    )


def wait_for(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Ask another process until it says yes."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {deadline_s:g} s for {what}"
        time.sleep(POLL_S)


def resident_peak_bytes(pid: int) -> int:
    """The most memory that a process has held so far."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def body(text: str, fields: dict[str, Any]) -> bytes:
    messages = [{"role": "user", "content": text}]
    return json.dumps({"messages": messages, "temperature": 0, **fields}).encode()


def _request(base: str, text: str, fields: dict[str, Any]) -> Request:
    headers = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
    return Request(f"{base}/v1/chat/completions", body(text, fields), headers)
