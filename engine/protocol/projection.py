"""Engine events in, OpenAI stream chunks out: the hot path of both servers.

A projection belongs to one response. `chunks` turns each event, in order, into zero or more
whole SSE events, ready to be sent; the last one it returns is `data: [DONE]`. What is the same
in every chunk is encoded once; only the text goes through a JSON writer.

Shapes: the role comes first, once for each choice; a chunk holds one choice; each choice
finishes exactly once; usage comes last and only if asked for. Chunks with empty text are not
sent: logprobs of tokens whose text is held back wait for the text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import orjson

from engine.protocol.collected import Collected
from engine.protocol.errors import FewerError, from_code
from engine.protocol.frames import Event, Failed, StreamEvent, TokenLogprob
from engine.protocol.shapes import chat_logprobs, completion_logprobs, tool_delta, usage_object
from engine.protocol.sse import DONE, event, one_line_json

__all__ = ["ChatProjection", "Collected", "CompletionProjection", "Projection", "error_chunks"]


def error_chunks(error: FewerError) -> list[bytes]:
    """How a stream that has begun ends when it fails: an error object in band, then [DONE]."""
    return [event(error.to_wire()), DONE]


class _Choice:
    """What is known of one choice while it streams.

    head, tail: what stands before and after the text in a chunk that holds nothing else
    """

    __slots__ = (
        "finished",
        "head",
        "logprobs",
        "offset_chars",
        "refusal_logprobs",
        "seed",
        "started",
        "tail",
    )

    def __init__(self, head: bytes, tail: bytes) -> None:
        self.head = head
        self.tail = tail
        self.started = False
        self.finished = False
        self.seed: int | None = None
        self.logprobs: list[TokenLogprob] = []
        self.refusal_logprobs: list[TokenLogprob] = []
        self.offset_chars = 0


class Projection(ABC):
    """What both surfaces share. `ended` turns true with the terminal event."""

    object_name: str

    def __init__(self, id: str, model: str, created: int, *, include_usage: bool = False) -> None:
        """created: Unix time in seconds; include_usage: the client asked for a usage chunk."""
        self.ended = False
        self._include_usage = include_usage
        self._choices: dict[int, _Choice] = {}
        identity = {"id": id, "object": self.object_name, "created": created, "model": model}
        self._open = b"data: " + one_line_json(identity)[:-1] + b',"choices":['
        self._close = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"

    def joined(self, events: Iterable[StreamEvent]) -> bytes:
        """The bytes of all that `events` cause."""
        return b"".join([chunk for event in events for chunk in self.chunks(event)])

    def chunks(self, event: StreamEvent) -> list[bytes]:
        """The SSE events that `event` causes. Nothing comes of events after the terminal."""
        if self.ended:
            return []
        if type(event) is Event:
            choice = self._choices.get(event.choice)
            if choice is not None and _is_plain(event, choice):
                choice.offset_chars += len(event.text)
                return [choice.head + one_line_json(event.text) + choice.tail]
            return self._of_event(event, choice or self._new_choice(event.choice))
        if type(event) is Failed:
            self.ended = True
            return error_chunks(
                from_code(
                    event.code,
                    event.message,
                    param=event.param,
                    retry_after_s=event.retry_after_s,
                )
            )
        return []

    def _new_choice(self, index: int) -> _Choice:
        head, tail = self._around(index)
        choice = self._choices[index] = _Choice(self._open + head, tail + self._close)
        return choice

    def _of_event(self, event: Event, choice: _Choice) -> list[bytes]:
        if event.seed is not None:
            choice.seed = event.seed
        if event.logprobs:
            refused = event.kind == "refusal"
            (choice.refusal_logprobs if refused else choice.logprobs).extend(event.logprobs)
        out: list[bytes] = []
        if not choice.finished:
            if event.text or event.tool is not None:
                self._start(event.choice, choice, out)
                out.append(self._delta(event, choice))
            if event.finish is not None:
                self._start(event.choice, choice, out)
                choice.finished = True
                out.append(self._chunk(self._finish(event, choice)))
        if event.usage is not None:
            self.ended = True
            if self._include_usage:
                usage = orjson.dumps(usage_object(event.usage))
                out.append(self._open + b'],"usage":' + usage + b"}\n\n")
            out.append(DONE)
        return out

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        return self._open + one_line_json(choice) + self._close

    def _start(self, index: int, choice: _Choice, out: list[bytes]) -> None:  # noqa: B027
        """Append what comes before a choice's first delta: nothing, where there is no role."""

    @abstractmethod
    def _around(self, index: int) -> tuple[bytes, bytes]:
        """JSON of a choice that holds nothing but text: what goes before the text, and after."""

    @abstractmethod
    def _delta(self, event: Event, choice: _Choice) -> bytes:
        """The chunk of an event's text or tool call."""

    @abstractmethod
    def _finish(self, event: Event, choice: _Choice) -> dict[str, Any]:
        """The choice object that ends a choice."""


def _is_plain(event: Event, choice: _Choice) -> bool:
    """Is there text, and nothing to be told but text? So it is for nearly every event."""
    return (
        event.kind == "text"
        and event.text != ""
        and event.finish is None
        and event.logprobs is None
        and event.usage is None
        and choice.started
        and not (choice.finished or choice.logprobs)
    )


_CHAT_FIELDS = {"reasoning": "reasoning_content", "refusal": "refusal"}
"""Where a chat delta has text that is not content."""


class ChatProjection(Projection):
    """`chat.completion.chunk`s."""

    object_name = "chat.completion.chunk"

    def _around(self, index: int) -> tuple[bytes, bytes]:
        head = b'{"index":%d,"delta":{"content":' % index
        return head, b'},"logprobs":null,"finish_reason":null}'

    def _start(self, index: int, choice: _Choice, out: list[bytes]) -> None:
        if choice.started:
            return
        choice.started = True
        role: dict[str, Any] = {
            "index": index,
            "delta": {"role": "assistant", "content": "", "refusal": None},
            "logprobs": None,
            "finish_reason": None,
        }
        if choice.seed is not None:
            role["seed"] = choice.seed
        out.append(self._chunk(role))

    def _delta(self, event: Event, choice: _Choice) -> bytes:
        if event.kind == "text" and not choice.logprobs:
            return choice.head + one_line_json(event.text) + choice.tail
        if event.tool is not None:
            delta: dict[str, Any] = {"tool_calls": [tool_delta(event.tool)]}
        else:
            delta = {_CHAT_FIELDS.get(event.kind, "content"): event.text}
        return self._chunk(
            {
                "index": event.choice,
                "delta": delta,
                "logprobs": _take_chat_logprobs(choice),
                "finish_reason": None,
            }
        )

    def _finish(self, event: Event, choice: _Choice) -> dict[str, Any]:
        finish = {
            "index": event.choice,
            "delta": {},
            "logprobs": _take_chat_logprobs(choice),
            "finish_reason": event.finish,
        }
        return finish | _extras(event)


class CompletionProjection(Projection):
    """`text_completion` chunks, which have no role and put the seed in the first with text."""

    object_name = "text_completion"

    def _around(self, index: int) -> tuple[bytes, bytes]:
        return b'{"index":%d,"text":' % index, b',"logprobs":null,"finish_reason":null}'

    def _delta(self, event: Event, choice: _Choice) -> bytes:
        chunk = {
            "index": event.choice,
            "text": event.text,
            "logprobs": _take_completion_logprobs(choice),
            "finish_reason": None,
        }
        if not choice.started and choice.seed is not None:
            chunk["seed"] = choice.seed
        choice.started = True
        choice.offset_chars += len(event.text)
        return self._chunk(chunk)

    def _finish(self, event: Event, choice: _Choice) -> dict[str, Any]:
        finish = {
            "index": event.choice,
            "text": "",
            "logprobs": _take_completion_logprobs(choice),
            "finish_reason": event.finish,
        }
        return finish | _extras(event)


def _extras(event: Event) -> dict[str, Any]:
    """Of a finish: vLLM's `stop_reason`, and whether the choice has landed."""
    extras: dict[str, Any] = {} if event.stop is None else {"stop_reason": event.stop}
    return extras | {"landed": True} if event.landed else extras


def _take_chat_logprobs(choice: _Choice) -> dict[str, Any] | None:
    content, choice.logprobs = choice.logprobs, []
    refusal, choice.refusal_logprobs = choice.refusal_logprobs, []
    return chat_logprobs(content, refusal)


def _take_completion_logprobs(choice: _Choice) -> dict[str, Any] | None:
    tokens, choice.logprobs = choice.logprobs, []
    return completion_logprobs(tokens, choice.offset_chars) if tokens else None
