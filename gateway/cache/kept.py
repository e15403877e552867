"""An answer that is kept: the events that it was made of, so that any shape can be made again."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from engine.protocol.frames import Event, Finish, StreamEvent, Usage
from gateway.backends.base import Stream

EVENTS_PER_RECEIVE = 32
"""So much of what was said before goes out at once; then the client must have taken it."""

WHOLE: frozenset[Finish] = frozenset({"stop", "tool_calls"})
CUT: frozenset[Finish] = WHOLE | {"length"}


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """key:      what it was kept under, to be compared with what it is found under
    created_s: Unix time of its end
    model:     what made it
    events:    text, tools, finishes and the usage, in order, without ids
    """

    key: bytes
    created_s: float
    model: str
    events: list[Event]

    @property
    def usage(self) -> Usage:
        return self.events[-1].usage or Usage()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Kept)


def encode(kept: Kept) -> bytes:
    return _encoder.encode(kept)


def decode(data: bytes, key: bytes) -> Kept | None:
    """None for what is not an answer under this key, whatever it is."""
    try:
        kept = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    whole = kept.events and kept.events[-1].usage is not None
    return kept if whole and kept.key == key else None


def lasting(
    events: Sequence[StreamEvent], choices: int, finishes: frozenset[Finish]
) -> list[Event] | None:
    """What is to be kept of a stream; None unless it is complete.

    choices:  how many must have come to an end
    finishes: the ends that count: WHOLE or CUT
    """
    if not events or not isinstance(last := events[-1], Event) or last.usage is None:
        return None
    said = [replace(event, id="") for event in events if isinstance(event, Event)]
    ends = {event.choice: event.finish for event in said if event.finish is not None}
    if sorted(ends) != list(range(choices)) or not finishes.issuperset(ends.values()):
        return None
    return said


class KeptStream(Stream):
    """A kept answer, given again a slice at a time."""

    def __init__(self, id: str, kept: Kept) -> None:
        self._id = id
        self._events = kept.events
        self._next = 0

    async def receive(self) -> list[StreamEvent]:
        start = self._next
        self._next = start + EVENTS_PER_RECEIVE
        return [replace(event, id=self._id) for event in self._events[start : self._next]]

    async def aclose(self) -> None:
        self._next = len(self._events)
