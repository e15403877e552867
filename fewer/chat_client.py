"""A small blocking client of the gateway's chat endpoint: one answer, streamed."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from engine.protocol.errors import (
    FewerError,
    SetupError,
    Unauthenticated,
    Unavailable,
    from_code,
)

READ_BYTES = 65_536
SILENCE_S = 120.0
"""The gateway sends something every few seconds, if only a comment; longer means it is gone."""
Message = dict[str, str]
Parameters = Mapping[str, str | float | None]


@dataclass(slots=True)
class Answer:
    """What is known of an answer. Times are the client's own, in seconds from the request.

    text:          all of it so far
    first_token_s, last_token_s: 0 until there is one
    prompt_tokens, cached_tokens, completion_tokens: as the gateway metered them, at the end
    finish_reason: None while it streams, and when it was cut off
    """

    text: str = ""
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str | None = None

    @property
    def tokens_per_s(self) -> float:
        """Of the decode alone: the first token's wait is told by `first_token_s`."""
        span_s, tokens = self.last_token_s - self.first_token_s, self.completion_tokens - 1
        # An answer that was stopped has not been counted.
        return tokens / span_s if span_s > 0 and tokens > 0 else 0.0

    def __str__(self) -> str:
        cached = f" ({self.cached_tokens} cached)" if self.cached_tokens else ""
        parts = [f"first token {self.first_token_s:.2f} s"]
        if self.tokens_per_s:
            parts.append(f"{self.tokens_per_s:.1f} tokens/s")
        if self.prompt_tokens:
            parts += [f"{self.prompt_tokens} in{cached}", f"{self.completion_tokens} out"]
        if self.finish_reason == "length":
            parts.append("cut at the limit")
        return " · ".join(parts)


class ChatClient:
    """Talks to one gateway. A connection for each answer: closing it is what stops one.

    url: the gateway's address, with or without /v1
    key: a client key, or empty
    parameters: sent with every request; None leaves the choice to the gateway
    """

    def __init__(self, url: str, key: str = "", parameters: Parameters | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SetupError(f"--url must be like http://127.0.0.1:8080, not {url!r}.")
        self._parts = parts
        self._headers = {"content-type": "application/json", "accept": "text/event-stream"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        given = (parameters or {}).items()
        self._parameters = {name: value for name, value in given if value is not None}

    def stream(self, messages: list[Message], answer: Answer) -> Generator[str, None, None]:
        """Ask, and yield the answer's text as it comes; `answer` is kept up to date.

        Closing the iterator closes the connection, which cancels the generation. Raises the
        gateway's error, or `Unavailable` when there is no gateway or it went away.
        """
        asked = {"messages": messages, "stream": True, "stream_options": {"include_usage": True}}
        started = time.monotonic()
        connection = self._connection()
        try:
            connection.request(
                "POST",
                f"{self._parts.path}/v1/chat/completions",
                json.dumps(self._parameters | asked),
                self._headers,
            )
            for chunk in _chunks(connection.getresponse()):
                if text := _read(chunk, answer):
                    answer.text += text
                    answer.last_token_s = time.monotonic() - started
                    answer.first_token_s = answer.first_token_s or answer.last_token_s
                    yield text
        except ConnectionRefusedError:
            raise Unavailable(
                f"No gateway answers at {self.url}. Start one with `fewer serve`, "
                f"or name another with --url."
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"The connection to {self.url} broke: {error}.") from error
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        secure = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        return kind(self._parts.hostname or "", self._parts.port, timeout=SILENCE_S)


def _chunks(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    from gateway.backends.sse import SseParser

    if response.status != 200:
        raise _refusal(response.status, response.read())
    parser = SseParser()
    while data := response.read1(READ_BYTES):
        for event in parser.feed(data):
            if event.data == "[DONE]":
                return
            yield json.loads(event.data)
    raise Unavailable("The answer broke off: the gateway closed the connection.")


def _read(chunk: dict[str, Any], answer: Answer) -> str:
    """Take what `chunk` says into `answer`; returns its text."""
    if "error" in chunk:
        raise _error(chunk["error"])
    if usage := chunk.get("usage"):
        answer.prompt_tokens = usage["prompt_tokens"]
        answer.completion_tokens = usage["completion_tokens"]
        answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    text = ""
    for choice in chunk["choices"]:
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        text += choice["delta"].get("content") or ""
    return text


def _refusal(status: int, body: bytes) -> FewerError:
    try:
        return _error(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return Unavailable(f"The gateway answered {status}, and not as a gateway of ours would.")


def _error(wire: dict[str, Any]) -> FewerError:
    message = str(wire["message"])
    if wire.get("type") == Unauthenticated.type:
        message += " Here: --key KEY, or FEWER_API_KEY."
    return from_code(str(wire["code"]), message, param=wire.get("param"))
