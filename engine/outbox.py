"""Frames on their way to connections, gathered so that a step wakes each of them once."""

from __future__ import annotations

import logging
from typing import Protocol

from engine.protocol.frames import Event, Events, FromEngine

logger = logging.getLogger(__name__)


class Sink(Protocol):
    """One connection, as the core sees it. Compared by identity."""

    def deliver(self, frames: list[FromEngine]) -> None:
        """Take frames, in order. Called on the core thread: hand them over and return at once.

        Bounding what a slow reader piles up is the connection's part: it pauses its requests.
        """


class Outbox:
    """Frames and events by sink. The events of one flush share one `Events` frame, sent first."""

    def __init__(self) -> None:
        self._frames: dict[Sink, list[FromEngine]] = {}
        self._events: dict[Sink, list[Event]] = {}

    def frame(self, sink: Sink, frame: FromEngine) -> None:
        self._frames.setdefault(sink, []).append(frame)

    def event(self, sink: Sink, event: Event) -> None:
        self._events.setdefault(sink, []).append(event)

    def forget(self, sink: Sink) -> None:
        """Drop what was meant for a sink that is gone."""
        self._frames.pop(sink, None)
        self._events.pop(sink, None)

    def flush(self) -> list[Sink]:
        """Deliver everything. Returns the sinks that failed: they are gone."""
        events, self._events = self._events, {}
        frames, self._frames = self._frames, {}
        broken = []
        for sink in dict.fromkeys((*events, *frames)):
            ready: list[FromEngine] = [Events(events[sink])] if sink in events else []
            ready += frames.get(sink, [])
            try:
                sink.deliver(ready)
            except Exception:
                # One connection's fault must not end the streams of the others.
                logger.exception("A connection could not take its frames and is dropped.")
                broken.append(sink)
        return broken
