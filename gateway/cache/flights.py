"""Answers on their way, each read by everybody who has asked for the same.

A flight reads its backend in a task of its own, little ahead of its fastest reader, and keeps what
was said, so that who comes later hears it from the beginning. Nobody's leaving ends it but the
last one's, which cancels the generation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable

from msgspec.structs import replace

from engine.protocol.errors import Unavailable
from engine.protocol.frames import Event, StreamEvent
from gateway.backends.base import Stream, is_terminal
from gateway.backends.sizes import size_bytes
from gateway.cache.kept import EVENTS_PER_RECEIVE

READ_AHEAD_EVENTS = 64
"""When so much has been read by nobody yet, the backend is not asked for more. Asking only when
everything was read would cost another wake for each chunk, of 8 us in place of 5."""

Note = Callable[[str], None]
"""Told the name of each model that is tried."""

Begin = Callable[[Note], Awaitable[Stream]]
"""Asks a backend; returns its stream once it was accepted."""

Landed = Callable[["Flight"], Awaitable[None]]
"""What becomes of an answer that has come to its end, while its flight can still be joined."""

_log = logging.getLogger("fewer.flights")


class Flight:
    """One generation and its readers.

    model:    the one that answers, or was tried last
    is_over:  nothing more will come
    is_whole: all that was said is there still; else it grew too long, and nobody can join
    """

    def __init__(self, begin: Begin, landed: Landed, max_bytes: int) -> None:
        """max_bytes: what a log may hold beside what its slowest reader has not read."""
        self.model = ""
        self.is_over = False
        self.is_whole = True
        self._begin = begin
        self._landed = landed
        self._max_bytes = max_bytes
        self._log: list[StreamEvent] = []
        self._forgotten = 0
        self._bytes = 0
        self._readers: dict[Reader, None] = {}
        self._read = 0
        self._caught_up = asyncio.Event()
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._fault: BaseException | None = None
        self.task = asyncio.create_task(self._fly())
        self.task.add_done_callback(self._end)

    def __repr__(self) -> str:
        state = "over" if self.is_over else "flying"
        return f"<Flight {state}, {len(self._readers)} readers, {len(self._log)} events>"

    @property
    def is_complete(self) -> bool:
        """Has it come to a good end?"""
        return self.is_over and bool(self._log) and type(self._log[-1]) is Event

    @property
    def is_joinable(self) -> bool:
        """Not while its last reader's leaving ends it, and not after a failure."""
        alive = self.is_complete or (bool(self._readers) and not self.is_over)
        return alive and self.is_whole and not self.task.done()

    @property
    def events(self) -> list[StreamEvent]:
        """All that was said, as long as `is_whole`."""
        return self._log

    async def board(self, id: str, note: Note) -> Reader:
        """One more reader, of whom all events have this id. Returns once a backend has accepted.

        Raises what everybody was refused with. `note` is only told the model while the reader is
        the first of those that are left: the generation is booked on that one.
        """
        reader = Reader(self, id, note)
        self._readers[reader] = None
        self._tell()
        try:
            await asyncio.shield(self._accepted)
        except BaseException:
            await self.leave(reader)
            raise
        return reader

    async def leave(self, reader: Reader) -> None:
        """The last one to leave ends what is not over. Safe to call twice."""
        if reader not in self._readers:
            return
        del self._readers[reader]
        self.trim()
        self._tell()
        if not (self._readers or self.is_over):
            self.task.cancel()
            await asyncio.wait([self.task])

    def after(self, position: int) -> list[StreamEvent]:
        """What was said from there on, a slice of it. Raises what the flight has died of."""
        start = position - self._forgotten
        found = self._log[start : start + EVENTS_PER_RECEIVE]
        if not found and self._fault is not None:
            raise self._fault
        return found

    def has_read(self, reader: Reader) -> None:
        """Somebody has come further."""
        if reader.position > self._read:
            self._read = reader.position
            if self._ahead < READ_AHEAD_EVENTS:
                self._caught_up.set()
        if not self.is_whole:
            self.trim()

    async def _fly(self) -> None:
        try:
            stream = await self._begin(self._note)
        except asyncio.CancelledError:
            self.is_over = True
            self._accepted.set_exception(Unavailable("The gateway is shutting down."))
            raise
        except BaseException as error:
            self.is_over = True
            self._accepted.set_exception(error)
            return
        try:
            self._accepted.set_result(None)
            while not self.is_over:
                while self._ahead >= READ_AHEAD_EVENTS:
                    self._caught_up.clear()
                    await self._caught_up.wait()
                self._add(await stream.receive())
        finally:
            self.is_over = True
            self._wake()
            await stream.aclose()
        await self._landed(self)

    def _end(self, task: asyncio.Task[None]) -> None:
        """Only a fault of ours ends it otherwise; then its readers are told."""
        if self._accepted.done() and not self._accepted.cancelled():
            self._accepted.exception()  # nobody may be left to be told
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.critical("a flight died: %r", error, exc_info=error)
            self._fault = error
            self._wake()

    @property
    def _ahead(self) -> int:
        """Events that nobody has read."""
        return self._forgotten + len(self._log) - self._read

    def _add(self, events: list[StreamEvent]) -> None:
        self._log += events
        self._bytes += sum(map(size_bytes, events))
        self.is_over = not events or is_terminal(events[-1])
        if self._bytes > self._max_bytes:
            self.is_whole = False
        self._wake()

    def _wake(self) -> None:
        for reader in self._readers:
            reader.wake()

    def trim(self) -> None:
        """Of a log that is not whole, forget what every reader has read."""
        if self.is_whole or not self._readers:
            return
        read = min(reader.position for reader in self._readers)
        del self._log[: read - self._forgotten]
        self._forgotten = read

    def _note(self, model: str) -> None:
        self.model = model
        self._tell()

    def _tell(self) -> None:
        """Book what is still to come on the first of the readers."""
        if self.model and self._readers and not self.is_over:
            next(iter(self._readers)).note(self.model)


class Reader(Stream):
    """One reader's place in a flight.

    position: events that it has read
    """

    def __init__(self, flight: Flight, id: str, note: Note) -> None:
        self.position = 0
        self.note = note
        self._flight = flight
        self._id = id
        self._waiter: asyncio.Future[None] | None = None
        self._left = False

    async def receive(self) -> list[StreamEvent]:
        flight = self._flight
        while not self._left:
            if events := flight.after(self.position):
                self.position += len(events)
                flight.has_read(self)
                id = self._id
                return [event if event.id == id else replace(event, id=id) for event in events]
            if flight.is_over:
                break
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return []

    async def aclose(self) -> None:
        self._left = True
        self.wake()
        await self._flight.leave(self)

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Flights:
    """All flights of a process, those that can be joined by their key."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, Flight] = {}
        self._flying: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Flights {len(self._flying)} flying, {len(self._by_key)} to be joined>"

    def find(self, key: Hashable) -> Flight | None:
        """One that can be joined."""
        flight = self._by_key.get(key)
        return flight if flight is not None and flight.is_joinable else None

    def open(self, key: Hashable | None, begin: Begin, landed: Landed, max_bytes: int) -> Flight:
        """A new one, which others find under `key`; nobody does without."""
        flight = Flight(begin, landed, max_bytes)
        self._flying.add(flight.task)
        flight.task.add_done_callback(self._flying.discard)
        if key is not None:
            self._by_key[key] = flight
            flight.task.add_done_callback(lambda _: self._forget(key, flight))
        return flight

    async def aclose(self) -> None:
        """End what is still flying, and what is being kept."""
        flying = list(self._flying)
        for task in flying:
            task.cancel()
        if flying:
            await asyncio.wait(flying)

    def _forget(self, key: Hashable, flight: Flight) -> None:
        if self._by_key.get(key) is flight:
            del self._by_key[key]
