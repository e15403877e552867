"""The weaker model's answer while nobody has seen anything of it, and after."""

from __future__ import annotations

import asyncio
from typing import Literal

from msgspec.structs import replace

from engine.protocol.frames import Accepted, Event, Failed, StreamEvent, TokenLogprob, Usage
from gateway.backends.base import Stream, is_terminal
from gateway.routing.margins import Margins
from gateway.telemetry.metrics import Spent
from policies.request import Request
from policies.route import Cascade

MARGIN_TOPS = 2
"""Likeliest tokens that must be told of each."""

Result = Literal["sure", "unsure", "unknown", "failed"]
"""unknown: the model tells no logprobs, or nothing has come in time; it is taken for sure."""


class Trial:
    """Holds back what `stream` says until it is known whether it may be shown: at most the
    cascade's tokens, and at most until `due_s`, in the loop's time. Close it unless it is `shown`.
    """

    def __init__(self, stream: Stream, cascade: Cascade, due_s: float) -> None:
        self._stream = stream
        self._margins = Margins(cascade)
        self._due_s = due_s
        self._held: list[StreamEvent] = []
        self._reading: asyncio.Task[list[StreamEvent]] | None = None
        self._ended = False

    @property
    def text(self) -> str:
        """What it has said so far."""
        events = (event for event in self._held if isinstance(event, Event))
        return "".join(event.text for event in events if event.kind == "text")

    async def result(self) -> Result:
        """Read as much as it takes."""
        while not self._ended and self._margins.verdict is None:
            if not await self._read():
                break
        if self._held and isinstance(self._held[-1], Failed):
            return "failed"
        if not self._margins.are_known:
            return "unknown"
        verdict = self._margins.verdict
        sure = self._margins.so_far if verdict is None or self._ended else verdict
        return "sure" if sure else "unsure"

    def shown(self, request: Request) -> Stream:
        """All of it, from the beginning; with the logprobs that `request` asks for."""
        return _Shown(self._held, self._reading, self._stream, request)

    async def aclose(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        await self._stream.aclose()

    def spent(self, prompt_tokens: int) -> Spent:
        """By what has come. prompt_tokens: by estimate, for a model that has not told them"""
        usage = _usage_of(self._held)
        if usage is not None:
            return Spent(usage.prompt_tokens, usage.completion_tokens, usage.estimated)
        accepted = [e.prompt_tokens for e in self._held if isinstance(e, Accepted)]
        return Spent(accepted[0] if accepted else prompt_tokens, self._margins.seen, True)

    async def _read(self) -> bool:
        """Take what comes next; false when nothing has come in time. Nothing is lost of it."""
        self._reading = asyncio.create_task(self._stream.receive())
        left_s = self._due_s - asyncio.get_running_loop().time()
        await asyncio.wait([self._reading], timeout=max(0.0, left_s))
        if not self._reading.done():
            return False
        arrived, self._reading = self._reading.result(), None
        for event in arrived:
            if isinstance(event, Event):
                self._margins.feed(event)
        self._held += arrived
        self._ended = not arrived or is_terminal(arrived[-1])
        return True


class _Shown(Stream):
    """What was held back, and then the rest."""

    def __init__(
        self,
        held: list[StreamEvent],
        reading: asyncio.Task[list[StreamEvent]] | None,
        inner: Stream,
        request: Request,
    ) -> None:
        self._held = held
        self._reading = reading
        self._inner = inner
        asked = request.parameters.get("logprobs") is True
        self._tops = int(request.parameters.get("top_logprobs") or 0) if asked else None

    async def receive(self) -> list[StreamEvent]:
        if self._held:
            events, self._held = self._held, []
        elif self._reading is not None:
            events, self._reading = await self._reading, None
        else:
            events = await self._inner.receive()
        if self._tops is not None and self._tops >= MARGIN_TOPS:
            return events
        return [self._as_asked(event) for event in events]

    async def aclose(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        await self._inner.aclose()

    def _as_asked(self, event: StreamEvent) -> StreamEvent:
        """Without the logprobs that were asked for to judge it."""
        if not isinstance(event, Event) or event.logprobs is None:
            return event
        if self._tops is None:
            return replace(event, logprobs=None)
        return replace(event, logprobs=[_within(each, self._tops) for each in event.logprobs])


def telling_margins(request: Request) -> Request:
    """`request` with the logprobs that margins are made of."""
    asked = request.parameters.get("top_logprobs") or 0
    wanted = {"logprobs": True, "top_logprobs": max(MARGIN_TOPS, int(asked))}
    return replace(request, parameters=request.parameters | wanted)


def _within(logprob: TokenLogprob, tops: int) -> TokenLogprob:
    return replace(logprob, top=logprob.top[:tops])


def _usage_of(events: list[StreamEvent]) -> Usage | None:
    last = events[-1] if events else None
    return last.usage if isinstance(last, Event) else None
