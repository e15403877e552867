from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from benchmarks.figures import Row
from benchmarks.gateway_load.book import Book, Call
from benchmarks.gateway_load.comparison import Comparison, medians, requests_row, stream_row
from benchmarks.gateway_load.engine_face import Engine, EngineConnection
from benchmarks.gateway_load.load import Clients, ClosedLoop, Measured, OpenLoop, send_all
from benchmarks.gateway_load.openai_face import OpenAI, OpenAIConnection
from benchmarks.gateway_load.pace import Paced, Wheel, stamp
from benchmarks.gateway_load.targets import EngineTarget, HttpTarget, Target
from engine.protocol.frames import StreamEvent
from gateway.backends import base
from gateway.backends.engine import EngineBackend
from policies.request import Request

PACE_S = 0.004
STEP_S = 0.001


def due(late_us: int) -> bytes:
    """The stamp of a piece of text that comes so late if it comes now."""
    return stamp(time.monotonic() - late_us / 1e6)[1:]


def test_a_book_counts_only_while_it_is_open() -> None:
    book, call = Book(), Call()
    book.sent(call)
    book.heard(call, [due(0)])
    book.begin()
    book.heard(call, [due(2000), due(2000)])
    book.done(call, whole=True)
    book.open = False
    assert (book.chunks, book.ended, book.failed) == (2, 1, 0)
    assert len(book.first_s) == 0, "its first text came before"
    assert book.late_ms(50) == pytest.approx(2.0, abs=1.0)


def test_first_text_is_timed_from_the_sending_of_what_was_sent_while_open() -> None:
    book, early, late = Book(), Call(), Call()
    book.sent(early)
    book.begin()
    book.sent(late)
    for call in (early, late):
        book.heard(call, [due(0)])
    assert list(book.first_s) == [late.first_s - late.sent_s]


def test_a_book_is_idle_when_every_answer_has_ended() -> None:
    book, one, other = Book(), Call(), Call()
    book.sent(one)
    book.sent(other)
    book.done(one, whole=True)
    assert not book.idle.is_set()
    book.done(other, whole=False)
    book.done(other, whole=False)
    assert book.idle.is_set()
    assert (book.ended, book.failed) == (0, 1)


class Talker(Paced):
    def __init__(self, words: int) -> None:
        self.left = words
        self.said: list[bytes] = []
        self.done = asyncio.Event()

    def say(self, text: bytes) -> bool:
        self.said.append(text)
        self.left -= 1
        if not self.left:
            self.done.set()
        return self.left > 0


async def test_a_wheel_keeps_the_pace_of_every_stream() -> None:
    wheel = Wheel(PACE_S, STEP_S, lambda: None)
    talkers = [Talker(5), Talker(3)]
    for talker in talkers:
        wheel.join(talker)
    await asyncio.gather(*[talker.done.wait() for talker in talkers])
    for talker in talkers:
        due_us = [int(text[1:]) for text in talker.said]
        gaps_us = [later - earlier for earlier, later in pairwise(due_us)]
        assert gaps_us == [pytest.approx(PACE_S * 1e6, abs=2)] * (len(due_us) - 1)


@asynccontextmanager
async def listening(face: Engine | OpenAI) -> AsyncIterator[int]:
    """The port at which it listens."""
    connections: list[EngineConnection | OpenAIConnection] = []

    def connection() -> EngineConnection | OpenAIConnection:
        connections.append(made := face.connection())
        return made

    server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
    for made in connections:
        made.transport.abort()
    await asyncio.sleep(0)


async def test_the_engine_speaks_what_the_gateway_speaks() -> None:
    asked = Request("chat", "m", messages=[{"role": "user", "content": "Hi"}], max_tokens=2)
    async with listening(Engine(0, STEP_S)) as port:
        backend = EngineBackend("m", f"ws://127.0.0.1:{port}/v1/engine", "benchmark")
        try:
            deadline_s = asyncio.get_running_loop().time() + 10
            stream = await backend.generate(base.Call("1", asked, deadline_s=deadline_s))
            events: list[StreamEvent] = []
            while heard := await stream.receive():
                events += heard
            assert base.is_terminal(events[-1])
            await stream.aclose()
        finally:
            await backend.aclose()


def engine_target(port: int) -> Target:
    return EngineTarget(port, tokens=4)


def streamed_target(port: int) -> Target:
    return HttpTarget(port, "any", tokens=4, stream=True)


@pytest.mark.parametrize(("face", "target"), [(Engine, engine_target), (OpenAI, streamed_target)])
async def test_an_open_loop_hears_every_word_of_a_paced_upstream(
    face: Callable[[float, float], Engine | OpenAI], target: Callable[[int], Target]
) -> None:
    async with listening(face(PACE_S, STEP_S)) as port:
        load = OpenLoop(rate=400, ramp_s=0.05, seconds=0.2, seed=1)
        measured = await load.run(target(port), {})
    book = measured.book
    assert book.failed == 0
    assert book.chunks >= 4 * len(book.first_s) * 0.8 > 0
    assert measured.cpu_s["generator"] > 0


@pytest.mark.parametrize("stream", [True, False])
async def test_so_many_requests_are_sent_and_no_more(stream: bool) -> None:
    async with listening(OpenAI(0, STEP_S)) as port:
        target = HttpTarget(port, "any", tokens=3, stream=stream)
        target.book.begin()
        await send_all(target, 3, 10)
    assert (target.book.ended, target.book.failed) == (10, 0)
    assert target.book.chunks == 30


async def test_clients_ask_again_until_they_are_stopped() -> None:
    async with listening(Engine(0, STEP_S)) as port:
        measured = await ClosedLoop(4, 0.01, 0.05).run(engine_target(port), {})
    assert measured.book.ended >= 4
    assert measured.requests_per_s == measured.book.ended / measured.seconds


async def test_what_is_refused_counts_as_failed() -> None:
    def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        target = streamed_target(server.sockets[0].getsockname()[1])
        await target.open(1)
        target.ask()
        await target.book.idle.wait()
        Clients(target, 1).start(1)  # nothing is left to send it on
    assert target.book.failed == 2


def measured(first_ms: float, chunks: int, cpu_s: float) -> Measured:
    book = Book()
    book.first_s.append(first_ms / 1000)
    book.late_us.extend([1000] * chunks)
    book.ended = 10
    return Measured(book, 2.0, {"gateway": cpu_s, "upstream": 0.5, "generator": 1.0})


def test_a_row_of_streams_tells_what_was_added_to_the_direct_way() -> None:
    direct, through = measured(1.0, 1000, 0.0), measured(3.5, 2000, 0.05)
    row = stream_row("gateway", through, direct)
    assert row["added_ttft_p50_ms"] == pytest.approx(2.5)
    assert row["cpu_us_per_chunk"] == pytest.approx(25.0)
    assert (row["chunks_per_s"], row["its_cpu_percent"]) == (1000, 2.5)
    assert stream_row(None, direct, direct)["added_ttft_p50_ms"] is None


def test_a_row_of_requests() -> None:
    row = requests_row("gateway", measured(1.0, 1, 0.01), measured(1.0, 1, 0.0))
    assert row["requests_per_s"] == 5.0
    assert row["cpu_us_per_request"] == pytest.approx(1000)


def test_medians_are_by_column_and_missing_where_any_round_lacks_it() -> None:
    rows: list[Row] = [{"a": 1.0, "b": None}, {"a": 9.0, "b": 1.0}, {"a": 2.0, "b": 1.0}]
    assert medians(rows) == {"a": 2.0, "b": None}


def test_rounds_go_there_and_back_and_rows_are_paired_by_round() -> None:
    comparison = Comparison(
        "requests", "", {"direct": EngineTarget, "gateway": EngineTarget},  # type: ignore[dict-item]
        lambda seed: ClosedLoop(1, 0, 1), stream_row, {"gateway": "gateway"}, 1,
    )  # fmt: skip
    assert comparison.order(0) == comparison.order(1)[::-1] == ["direct", "gateway"]
    comparison.results = {
        "direct": [measured(1.0, 1, 0), measured(5.0, 1, 0), measured(2.0, 1, 0)],
        "gateway": [measured(2.0, 1, 0), measured(7.0, 1, 0), measured(5.0, 1, 0)],
    }
    direct, gateway = comparison.rows()
    assert (direct["through"], gateway["through"]) == ("direct", "gateway")
    assert gateway["added_ttft_p50_ms"] == pytest.approx(2.0)
