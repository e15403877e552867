"""Incremental parser of `text/event-stream`, as the HTML standard defines it (section 9.2.6).

No I/O: whoever owns the socket feeds bytes and takes events. Lines are cut in bytes and decoded
whole, so that a network cut inside a character cannot harm it. `retry` fields are skipped: the
gateway never reconnects to a generation.
"""

from __future__ import annotations

import re

import msgspec

from engine.protocol.errors import UpstreamFailed

MAX_EVENT_BYTES = 4 * 1024 * 1024

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\n|\r")


class ServerSentEvent(msgspec.Struct, frozen=True):
    """One dispatched event. `last_event_id` is the latest `id` of the stream so far."""

    data: str
    event: str = "message"
    last_event_id: str = ""


class SseParser:
    """Feed bytes as they come, take the events that they complete.

    max_event_bytes: a line, or the data of one event, that grows past it raises
                     `UpstreamFailed`, after which the parser must not be used
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._after_return = False
        self._at_start = True
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._event = ""
        self._last_event_id = ""

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """The events that `chunk` completes, in order."""
        if self._after_return and chunk:
            # The last chunk ended in CR, which ended a line; an LF here belongs to it.
            chunk = chunk.removeprefix(b"\n")
            self._after_return = False
        if not chunk:
            return []
        self._after_return = chunk.endswith(b"\r")
        first, *rest = _LINE_END.split(chunk) if b"\r" in chunk else chunk.split(b"\n")
        self._hold(first)
        if not rest:
            return []
        lines = [b"".join(self._pieces), *rest[:-1]]
        self._pieces, self._pieces_bytes = [], 0
        self._hold(rest[-1])
        events: list[ServerSentEvent] = []
        for line in lines:
            self._line(line, events)
        return events

    def flush(self) -> list[ServerSentEvent]:
        """What stands at the end of the stream without the blank line that would complete it.

        The standard discards it; a caller may use it where it cannot mislead.
        """
        events: list[ServerSentEvent] = []
        self._line(b"".join(self._pieces), events)
        self._line(b"", events)
        self._pieces, self._pieces_bytes = [], 0
        return events

    def _hold(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._pieces_bytes += len(piece)
            self._check_size(self._pieces_bytes)

    def _line(self, line: bytes, events: list[ServerSentEvent]) -> None:
        if self._at_start:
            line = line.removeprefix(_BYTE_ORDER_MARK)
            self._at_start = False
        if not line:
            self._dispatch(events)
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data_bytes += len(value) + 1
            self._check_size(self._data_bytes)
            self._data.append(value)
        elif name == b"event":
            self._event = _text(value)
        elif name == b"id" and b"\0" not in value:
            self._last_event_id = _text(value)

    def _dispatch(self, events: list[ServerSentEvent]) -> None:
        # An event without any data line is dropped, its name forgotten: the standard says so.
        if self._data:
            events.append(
                ServerSentEvent(
                    _text(b"\n".join(self._data)),
                    self._event or "message",
                    self._last_event_id,
                )
            )
            self._data, self._data_bytes = [], 0
        self._event = ""

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self._max_event_bytes:
            raise UpstreamFailed(
                f"The upstream sent an event of more than {self._max_event_bytes} bytes."
            )


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
