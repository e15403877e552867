"""The internal events of one answer as the event stream of the Responses API.

    response.created, response.in_progress          `opening`
    items with their parts and deltas               `joined`
    response.completed | .incomplete | .failed      `closing`, or `failure`

Numbers have no gaps; there is one end; what was opened is closed before it, and deltas add up to
what is done. A failure is told twice, as OpenAI's packages look for it in two places: as an
`error`, and as the response that has failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from engine.protocol.errors import ClientError, FewerError, RateLimited
from engine.protocol.frames import Event, Failed, StreamEvent, TokenLogprob, ToolDelta, Usage
from engine.protocol.sse import one_line_json
from gateway.errors import of_failed
from gateway.responses.output import Call, Happening, Item, Written

_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finishes that leave a response incomplete, and the reasons they are told as."""


class Framing(msgspec.Struct, frozen=True):
    """How events travel.

    frame:  the bytes of an event, of its type and JSON
    extra:  fields of every event
    errors: a failure is told as an `error`, too
    """

    frame: Callable[[str, bytes], bytes]
    extra: dict[str, Any] = {}
    errors: bool = True


def _server_sent(type: str, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (type.encode(), data)


SERVER_SENT = Framing(_server_sent)


class ResponseProjection:
    """Of one response.

    ended: nothing comes of further events; `closing` is due, or where `error` is set a refusal
    error: what it failed with
    """

    def __init__(self, id: str, described: dict[str, Any], framing: Framing = SERVER_SENT) -> None:
        """id: of the call; described: the response object, but for what comes of the answer."""
        self.ended = False
        self.error: FewerError | None = None
        self._id = id
        self._described = described
        self._framing = framing
        self._items: list[Item] = []
        self._written: Written | None = None
        self._calls: dict[int, Call] = {}
        self._logprobs: list[TokenLogprob] = []
        self._status = "in_progress"
        self._reason: str | None = None
        self._usage: Usage | None = None
        self._completed_at: int | None = None
        self._closed = False
        self._numbers = 0

    @property
    def begun(self) -> bool:
        """Was anything told of it?"""
        return self._numbers > 0

    def response(self) -> dict[str, Any]:
        """The response object as it stands."""
        details = None if self._reason is None else {"reason": self._reason}
        usage = {} if self._usage is None else {"usage": usage_object(self._usage)}
        return self._described | {
            "status": self._status,
            "completed_at": self._completed_at,
            "error": None if self.error is None else _error(self.error),
            "incomplete_details": details,
            "output": [item.shape() for item in self._items],
            **usage,
        }

    def opening(self) -> bytes:
        """Only the first time."""
        if self.begun:
            return b""
        response = self.response()
        told = ("response.created", "response.in_progress")
        return self._encoded([(name, {"response": response}) for name in told])

    def joined(self, events: Iterable[StreamEvent]) -> bytes:
        """The bytes of all that `events` cause; the end is `closing`'s to tell."""
        return self._encoded([told for event in events for told in self._take(event)])

    def closing(self, *, stored: bool) -> bytes:
        """How it ends. stored: it can be asked for again"""
        if self._closed:
            return b""
        self._closed = True
        self._described = self._described | {"store": stored}
        told: list[Happening] = []
        if self.error is not None and self._framing.errors:
            error = {name: getattr(self.error, name) for name in ("code", "message", "param")}
            told.append(("error", error))
        end = "incomplete" if self._status == "cancelled" else self._status
        return self._encoded([*told, (f"response.{end}", {"response": self.response()})])

    def failure(self, error: FewerError) -> bytes:
        """How it ends with an error from elsewhere. Nothing, when its end was told."""
        return (
            b"" if self._closed else self._encoded(self._fail(error)) + self.closing(stored=False)
        )

    def cancel(self) -> bytes:
        """The client wants no more of it."""
        return b"" if self.ended else self._encoded(self._end("cancelled", None))

    def _take(self, event: StreamEvent) -> list[Happening]:
        if self.ended:
            return []
        if isinstance(event, Failed):
            return self._fail(of_failed(event))
        if not isinstance(event, Event) or event.choice != 0:
            return []
        told: list[Happening] = []
        if self._status == "in_progress":
            self._logprobs += event.logprobs or ()
            if event.tool is not None:
                told += self._call(event.tool)
            elif event.text:
                told += self._write(event)
        if event.finish is not None and self._status == "in_progress":
            self._reason = _CUT.get(event.finish)
            self._status = "incomplete" if self._reason else "completed"
        if event.usage is not None:
            self._usage = event.usage
            whole = self._status == "in_progress"
            told += self._end("completed" if whole else self._status, self._reason)
        return told

    def _write(self, event: Event) -> list[Happening]:
        told: list[Happening] = []
        thought = event.kind == "reasoning"
        written = self._written
        if written is None or written.thought != thought:
            told += self._close_written("completed")
            prefix = "rs" if thought else "msg"
            written = self._written = Written(*self._new(prefix), thought=thought)
            self._items.append(written)
            told.append(written.opened())
        logprobs, self._logprobs = self._logprobs, []
        return told + written.write(event.kind, event.text, logprobs)

    def _call(self, delta: ToolDelta) -> list[Happening]:
        """Pieces of several calls may come in turns: each stays open until the end."""
        told = self._close_written("completed")
        call = self._calls.get(delta.index)
        if call is None:
            call = self._calls[delta.index] = Call(*self._new("fc"), delta)
            self._items.append(call)
            told.append(call.opened())
        return told + call.add(delta.arguments)

    def _close_written(self, status: str) -> list[Happening]:
        written, self._written = self._written, None
        return [] if written is None else written.close(status)

    def _fail(self, error: FewerError) -> list[Happening]:
        self.error = error
        return self._end("failed", None)

    def _end(self, status: str, reason: str | None) -> list[Happening]:
        self.ended = True
        self._status, self._reason = status, reason
        self._completed_at = int(time.time()) if status == "completed" else None
        of_items = "completed" if status == "completed" else "incomplete"
        told = self._close_written(of_items)
        for call in self._calls.values():
            told += call.close(of_items)
        self._calls = {}
        return told

    def _new(self, prefix: str) -> tuple[str, int]:
        place = len(self._items)
        return f"{prefix}_{self._id}_{place}", place

    def _encoded(self, told: list[Happening]) -> bytes:
        frames = []
        for type, fields in told:
            numbered = {"type": type, "sequence_number": self._numbers, **self._framing.extra}
            self._numbers += 1
            frames.append(self._framing.frame(type, one_line_json(numbered | fields)))
        return b"".join(frames)


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _error(error: FewerError) -> dict[str, Any]:
    """With the codes that the format has; the event `error` tells ours."""
    if isinstance(error, RateLimited):
        code = "rate_limit_exceeded"
    else:
        code = "invalid_prompt" if isinstance(error, ClientError) else "server_error"
    return {"code": code, "message": error.message}
