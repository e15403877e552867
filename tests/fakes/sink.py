"""A connection that keeps what it is given."""

from __future__ import annotations

import threading

from engine.protocol.frames import Accepted, Event, Events, Failed, FromEngine, Started, Usage


class FakeSink:
    """Frames by delivery, and views of them by request id. `wait` blocks for a terminal."""

    def __init__(self) -> None:
        self.deliveries: list[list[FromEngine]] = []
        self._changed = threading.Condition()

    def deliver(self, frames: list[FromEngine]) -> None:
        with self._changed:
            self.deliveries.append(frames)
            self._changed.notify_all()

    def wait(self, *ids: str, timeout_s: float = 30.0) -> None:
        """Until each of these ids has its terminal."""
        with self._changed:
            assert self._changed.wait_for(lambda: all(map(self.ended, ids)), timeout_s), ids

    def wait_for_event(self, id: str, timeout_s: float = 30.0) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: bool(self.events(id)), timeout_s)

    @property
    def frames(self) -> list[FromEngine]:
        return [frame for delivery in self.deliveries for frame in delivery]

    def events(self, id: str, choice: int | None = None) -> list[Event]:
        return [
            event
            for frame in self.frames
            if isinstance(frame, Events)
            for event in frame.events
            if event.id == id and choice in (None, event.choice)
        ]

    def accepted(self, id: str) -> list[Accepted]:
        return [f for f in self.frames if isinstance(f, Accepted) and f.id == id]

    def started(self, id: str) -> list[Started]:
        return [f for f in self.frames if isinstance(f, Started) and f.id == id]

    def failures(self, id: str) -> list[Failed]:
        return [f for f in self.frames if isinstance(f, Failed) and f.id == id]

    def failure(self, id: str) -> Failed:
        [failed] = self.failures(id)
        return failed

    def text(self, id: str, choice: int = 0) -> str:
        return "".join(event.text for event in self.events(id, choice))

    def usage(self, id: str) -> Usage:
        [usage] = [event.usage for event in self.events(id) if event.usage is not None]
        return usage

    def finish(self, id: str, choice: int = 0) -> str | None:
        [finish] = [event.finish for event in self.events(id, choice) if event.finish]
        return finish

    def ended(self, id: str) -> bool:
        usages = sum(event.usage is not None for event in self.events(id))
        terminals = usages + len(self.failures(id))
        assert terminals <= 1, f"{id} has {terminals} terminals"
        return terminals == 1
