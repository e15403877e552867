"""What tests of backends share: calls to make, and streams read to their end."""

from __future__ import annotations

from typing import Any

from engine.protocol.frames import Event, Failed, StreamEvent
from gateway.backends.base import Call, Stream
from policies.request import Request

HELLO = [{"role": "user", "content": "Hello"}]


def chat_call(id: str = "r1", *, deadline_s: float | None = None, **fields: Any) -> Call:
    return Call(id, Request("chat", "chat", **{"messages": HELLO, **fields}), deadline_s=deadline_s)


def completion_call(id: str = "r1", **fields: Any) -> Call:
    return Call(id, Request("completions", "chat", **{"prompts": ["Once"], **fields}))


async def drain(stream: Stream) -> list[StreamEvent]:
    """All events up to the terminal; closes the stream."""
    events: list[StreamEvent] = []
    while batch := await stream.receive():
        events += batch
    await stream.aclose()
    return events


def text_of(events: list[StreamEvent], choice: int = 0, kind: str = "text") -> str:
    return "".join(
        event.text
        for event in events
        if isinstance(event, Event) and event.choice == choice and event.kind == kind
    )


def failure(events: list[StreamEvent]) -> Failed:
    """The one `Failed`, which must be the last event."""
    assert [isinstance(event, Failed) for event in events] == [False] * (len(events) - 1) + [True]
    last = events[-1]
    assert isinstance(last, Failed)
    return last


def finishes(events: list[StreamEvent]) -> dict[int, str]:
    return {e.choice: e.finish for e in events if isinstance(e, Event) and e.finish is not None}
