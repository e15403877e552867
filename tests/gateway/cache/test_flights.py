"""One generation and its readers: nobody's coming, going or dawdling changes what others get."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol.errors import Overloaded, Unavailable
from engine.protocol.frames import Event, Failed, StreamEvent, Usage
from gateway.backends.base import Stream, is_terminal
from gateway.cache.flights import (
    READ_AHEAD_EVENTS,
    Flight,
    Flights,
    Landed,
    Note,
    Reader,
)
from gateway.cache.kept import EVENTS_PER_RECEIVE

MAX_BYTES = 1 << 20


class Said(Stream):
    """Says what the test has it say, when the test has it say so.

    asked: times that somebody wanted more
    """

    def __init__(self) -> None:
        self.asked = 0
        self._closed = False
        self._events: asyncio.Queue[list[StreamEvent]] = asyncio.Queue()

    def say(self, *texts: str) -> None:
        self._events.put_nowait([Event("backend", text=text, tokens=1) for text in texts])

    def finish(self) -> None:
        end = [Event("backend", finish="stop"), Event("backend", usage=Usage(1, 2))]
        self._events.put_nowait(list(end))

    def fail(self) -> None:
        self._events.put_nowait([Failed.of("backend", Unavailable("It died."))])

    def break_off(self) -> None:
        self._events.put_nowait([])

    async def receive(self) -> list[StreamEvent]:
        self.asked += 1
        return await self._events.get()

    async def aclose(self) -> None:
        self._closed = True

    def closed(self) -> bool:
        """Was it let go?"""
        return self._closed


class Airport:
    """Flights over one `Said`, and what became of them."""

    def __init__(self, max_bytes: int = MAX_BYTES, land: Landed | None = None) -> None:
        self.said = Said()
        self.flights = Flights()
        self.landed: list[Flight] = []
        self.notes: list[tuple[str, str]] = []
        self.flight = self.flights.open("key", self.begin, land or self.land, max_bytes)

    async def begin(self, note: Note) -> Stream:
        note("model")
        return self.said

    async def land(self, flight: Flight) -> None:
        self.landed.append(flight)

    async def board(self, id: str) -> Reader:
        return await self.flight.board(id, lambda model: self.notes.append((id, model)))


async def settled() -> None:
    """Everything that can happen without anything new has happened."""
    for _ in range(12):
        await asyncio.sleep(0)


async def read(reader: Stream) -> list[StreamEvent]:
    """To the end."""
    events: list[StreamEvent] = []
    while more := await reader.receive():
        events += more
        if is_terminal(events[-1]):
            break
    return events


def text_of(events: list[StreamEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Event))


async def test_who_comes_late_hears_all_of_it() -> None:
    port = Airport()
    first = await port.board("first")
    port.said.say("a", "b")
    assert text_of(await first.receive()) == "ab"
    late = await port.board("late")
    assert text_of(await late.receive()) == "ab"
    reading = asyncio.gather(read(first), read(late))
    await settled()
    port.said.say("c")
    port.said.finish()
    for id, events in zip(("first", "late"), await reading, strict=True):
        assert text_of(events) == "c"
        assert {event.id for event in events} == {id}
    assert port.landed == [port.flight]
    assert repr(port.flight) == "<Flight over, 2 readers, 5 events>"
    assert port.said.closed()


async def test_the_backend_is_read_little_ahead_of_the_fastest_reader() -> None:
    port = Airport()
    fast, slow = await port.board("fast"), await port.board("slow")
    for _ in range(4 * READ_AHEAD_EVENTS):
        port.said.say("x")
    for _ in range(2 * READ_AHEAD_EVENTS):
        await asyncio.sleep(0)
    assert port.said.asked == READ_AHEAD_EVENTS
    assert len(await slow.receive()) == EVENTS_PER_RECEIVE
    assert len(await fast.receive()) == EVENTS_PER_RECEIVE
    for _ in range(2 * READ_AHEAD_EVENTS):
        await asyncio.sleep(0)
    assert port.said.asked == READ_AHEAD_EVENTS + EVENTS_PER_RECEIVE
    await fast.aclose()
    await slow.aclose()


async def test_one_who_leaves_ends_nobody_elses() -> None:
    port = Airport()
    first, second = await port.board("first"), await port.board("second")
    waiting = asyncio.create_task(second.receive())
    leaving = asyncio.create_task(first.receive())
    await settled()
    leaving.cancel()
    await first.aclose()
    await first.aclose()
    assert await first.receive() == []
    assert not port.said.closed()
    port.said.say("on")
    assert text_of(await waiting) == "on"
    await second.aclose()
    assert port.said.closed()


async def test_the_last_who_leaves_cancels_at_once() -> None:
    port = Airport()
    readers = [await port.board(str(n)) for n in range(3)]
    waiting = [asyncio.create_task(reader.receive()) for reader in readers]
    await settled()
    for reader in readers[1:]:
        await reader.aclose()
    assert not port.said.closed()
    await readers[0].aclose()
    assert port.said.closed()
    assert await asyncio.gather(*waiting) == [[], [], []]
    assert port.flights.find("key") is None
    assert not port.landed
    assert repr(port.flights) == "<Flights 0 flying, 0 to be joined>"


async def test_the_last_one_leaves_while_the_backend_is_asked() -> None:
    port = Airport()
    cancelled: list[bool] = []

    async def never(note: Note) -> Stream:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return port.said

    flight = port.flights.open("other", never, port.land, MAX_BYTES)
    boarding = [asyncio.create_task(flight.board(str(n), lambda _: None)) for n in range(2)]
    await settled()
    boarding[0].cancel()
    await settled()
    assert not cancelled
    assert port.flights.find("other") is flight
    boarding[1].cancel()
    await asyncio.wait(boarding)
    assert cancelled
    assert port.flights.find("other") is None


@pytest.mark.parametrize("error", [Overloaded("full"), RuntimeError("a fault of ours")])
async def test_a_refusal_is_everybodys(error: Exception) -> None:
    port = Airport()

    async def refuse(note: Note) -> Stream:
        await asyncio.sleep(0)
        raise error

    flight = port.flights.open("refused", refuse, port.land, MAX_BYTES)
    boarding = [flight.board(str(n), lambda _: None) for n in range(3)]
    assert await asyncio.gather(*boarding, return_exceptions=True) == [error] * 3
    assert port.flights.find("refused") is None
    assert not port.landed


async def test_a_failure_is_everybodys_and_nobody_joins_it() -> None:
    port = Airport()
    readers = [await port.board(str(n)) for n in range(3)]
    reading = asyncio.gather(*map(read, readers))
    port.said.fail()
    for n, (failed,) in enumerate(await reading):
        assert isinstance(failed, Failed)
        assert (failed.id, failed.code) == (str(n), "unavailable")
    assert port.flights.find("key") is None


async def test_an_answer_that_just_stops_stops_for_all() -> None:
    port = Airport()
    readers = [await port.board(str(n)) for n in range(2)]
    reading = asyncio.gather(*map(read, readers))
    port.said.say("half")
    port.said.break_off()
    assert list(map(text_of, await reading)) == ["half", "half"]
    assert port.flights.find("key") is None


async def test_a_fault_of_ours_reaches_every_reader(caplog: pytest.LogCaptureFixture) -> None:
    port = Airport()

    async def broken() -> list[StreamEvent]:
        await settled()
        raise RuntimeError("a fault of ours")

    port.said.receive = broken  # type: ignore[method-assign]
    reader = await port.board("reader")
    reading = asyncio.create_task(reader.receive())
    await asyncio.wait([reading, port.flight.task])
    with pytest.raises(RuntimeError, match="a fault of ours"):
        await reader.receive()
    assert "a flight died" in caplog.text
    await reader.aclose()
    await asyncio.gather(reading, return_exceptions=True)


async def test_the_generation_is_booked_on_the_first_who_is_left() -> None:
    port = Airport()
    first = await port.board("first")
    second, third = await port.board("second"), await port.board("third")
    assert port.notes[-1] == ("first", "model")
    assert {id for id, _ in port.notes} == {"first"}
    await first.aclose()
    assert port.notes[-1] == ("second", "model")
    await second.aclose()
    assert port.notes[-1] == ("third", "model")
    port.said.finish()
    await read(third)
    late = await port.board("late")
    await third.aclose()
    assert port.notes[-1] == ("third", "model")
    assert port.flight.is_over
    await late.aclose()


async def test_a_slow_reader_holds_up_nobody_and_is_bounded_by_the_answer() -> None:
    port = Airport()
    slow, fast = await port.board("slow"), await port.board("fast")
    reading = asyncio.create_task(read(fast))
    for n in range(500):
        port.said.say(str(n))
    port.said.finish()
    assert text_of(await reading) == "".join(map(str, range(500)))
    pieces: list[list[StreamEvent]] = []
    while not (pieces and is_terminal(pieces[-1][-1])):
        pieces.append(await slow.receive())
    assert max(map(len, pieces)) <= EVENTS_PER_RECEIVE
    assert text_of([event for piece in pieces for event in piece]) == text_of(await reading)


async def test_what_grows_too_long_is_forgotten_behind_its_slowest_reader() -> None:
    port = Airport(max_bytes=2000)
    reader = await port.board("reader")
    heard = 0
    for _ in range(100):
        port.said.say("x" * 100)
        heard += len(text_of(await reader.receive()))
    assert heard == 10_000
    assert not port.flight.is_whole
    assert not port.flight.events
    assert port.flights.find("key") is None
    await reader.aclose()


async def test_what_has_come_to_a_good_end_can_be_joined_until_it_is_kept() -> None:
    kept = asyncio.Event()
    booked: list[str] = []

    async def slowly(flight: Flight) -> None:
        await kept.wait()

    port = Airport(land=slowly)
    flight = port.flight
    first = await port.board("first")
    port.said.say("all")
    port.said.finish()
    await read(first)
    await first.aclose()
    found = port.flights.find("key")
    assert found is flight
    late = await found.board("late", lambda _: booked.append("late"))
    assert text_of(await read(late)) == "all"
    assert not booked
    assert await late.receive() == []
    kept.set()
    await flight.task
    assert port.flights.find("key") is None


async def test_closing_ends_what_flies_and_its_readers() -> None:
    port = Airport()
    reading = asyncio.create_task(read(await port.board("reader")))
    await settled()

    async def never(note: Note) -> Stream:
        await asyncio.Event().wait()
        return port.said

    waiting = port.flights.open(None, never, port.land, MAX_BYTES)
    boarding = asyncio.create_task(waiting.board("other", lambda _: None))
    await settled()
    await port.flights.aclose()
    assert await reading == []
    with pytest.raises(Unavailable, match="shutting down"):
        await boarding
    assert port.said.closed()
    await port.flights.aclose()


Action = tuple[str, int]
actions = st.lists(
    st.tuples(st.sampled_from(["join", "read", "leave", "say"]), st.integers(0, 5)), max_size=40
)


@given(actions, st.sampled_from(["finish", "fail", "leave"]))
@settings(max_examples=60, deadline=None)
def test_no_reader_ever_changes_what_another_gets(steps: list[Action], end: str) -> None:
    """What must never happen: one client's disconnect ending another's stream."""
    asyncio.run(play(steps, end))


async def play(steps: list[Action], end: str) -> None:
    port = Airport()
    readers = {0: await port.board("0")}
    heard: dict[int, list[StreamEvent]] = {0: []}
    said: list[str] = []
    for number, (action, which) in enumerate(steps, 1):
        present = sorted(readers)
        if action == "say":
            said.append(f"{number} ")
            port.said.say(said[-1])
        elif action == "join" and (flight := port.flights.find("key")) is not None:
            readers[number] = await flight.board(str(number), lambda _: None)
            heard[number] = []
        elif action == "leave" and len(present) > 1:
            await readers.pop(present[which % len(present)]).aclose()
        elif action == "read" and present:
            chosen = present[which % len(present)]
            if len(text_of(heard[chosen]).split()) < len(said):
                heard[chosen] += await readers[chosen].receive()
        assert not port.said.closed()
    if end != "leave":
        port.said.finish() if end == "finish" else port.said.fail()
        for number, reader in readers.items():
            heard[number] += await read(reader)
            assert text_of(heard[number]) == "".join(said)
            assert isinstance(heard[number][-1], Event) == (end == "finish")
    for reader in readers.values():
        await reader.aclose()
    await settled()
    assert port.said.closed()
    assert port.flight.task.done()
    for events in heard.values():
        assert "".join(said).startswith(text_of(events))
