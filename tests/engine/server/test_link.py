"""The link over a real WebSocket: requests side by side, leaving, slow readers, bad frames."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import websockets
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

import engine.server.link
import engine.server.link_endpoint
import engine.server.send_queue
from engine.protocol.frames import (
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    Accepted,
    Cancel,
    Count,
    Counted,
    Event,
    Events,
    Failed,
    FromEngine,
    Generate,
    Hello,
    Pause,
    Ping,
    Pong,
    Resume,
    Started,
    Stats,
    ToEngine,
    Welcome,
    decode_from_engine,
    encode,
)
from engine.protocol.sampling import Sampling
from tests.fakes.engine import LETTERS, TOKEN, Gate, Served, fake_engine, serve, until
from tests.fakes.executor import HashExecutor
from tests.fakes.tokenizer import START

GREEDY = Sampling(temperature=0, allowed_token_ids=LETTERS)
HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
HI_IDS = [START, *b"user:hi"]


class Peer:
    """A gateway's side of the link."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, frame: ToEngine) -> None:
        await self.socket.send(encode(frame).decode())

    async def receive(self) -> FromEngine:
        """The next frame that is no statistics."""
        while True:
            frame = decode_from_engine(await self.socket.recv())
            if not isinstance(frame, Stats):
                return frame

    async def answer(self, id: str) -> list[FromEngine | Event]:
        """All that comes for `id`, its terminal last; fails on frames for other ids."""
        got: list[FromEngine | Event] = []
        while True:
            frame = await self.receive()
            for item in frame.events if isinstance(frame, Events) else [frame]:
                assert getattr(item, "id", None) == id
                got.append(item)
                if isinstance(item, (Failed, Counted)) or getattr(item, "usage", None):
                    return got

    async def closed(self) -> tuple[int, str]:
        """The code and reason that the engine closes with; frames before that are dropped."""
        with pytest.raises(ConnectionClosed) as closed:
            await self._read_on()
        assert closed.value.rcvd is not None, "the connection was lost without a close frame"
        return closed.value.rcvd.code, closed.value.rcvd.reason

    async def _read_on(self) -> None:
        while True:
            await self.socket.recv()


def text_of(answer: list[FromEngine | Event]) -> str:
    return "".join(item.text for item in answer if isinstance(item, Event))


def alone(prompt: list[int], max_tokens: int) -> str:
    return bytes(HashExecutor().generate(prompt, max_tokens, GREEDY)).decode()


@asynccontextmanager
async def linked(served: Served, **options: Any) -> AsyncIterator[Peer]:
    # Unbounded: a client that has stopped reading does not see the answer to its own close.
    told = {"max_size": None, "max_queue": None} | options
    async with websockets.connect(served.link, **told) as socket:
        peer = Peer(socket)
        await peer.send(Hello(PROTOCOL_VERSION, TOKEN))
        assert isinstance(await peer.receive(), Welcome)
        yield peer


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serve(fake_engine()) as served:
        yield served


@pytest.fixture
async def slow() -> AsyncIterator[Served]:
    """A step takes 2 ms."""
    async with serve(fake_engine(on_run=lambda batch: time.sleep(0.002))) as served:
        yield served


@pytest.fixture
async def peer(served: Served) -> AsyncIterator[Peer]:
    async with linked(served) as peer:
        yield peer


# hello ---------------------------------------------------------------------------------------


async def test_hello_is_answered_with_who_we_are(served: Served) -> None:
    async with websockets.connect(served.link) as socket:
        await socket.send(encode(Hello(PROTOCOL_VERSION, TOKEN)).decode())
        assert decode_from_engine(await socket.recv()) == Welcome(
            version=PROTOCOL_VERSION, model="hash", executor="hash", max_model_len=2048,
            vocab_size=258, kv_capacity_tokens=65536,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (Hello(PROTOCOL_VERSION, "wrong"), 1008),
        (Hello(PROTOCOL_VERSION, ""), 1008),
        (Hello(PROTOCOL_VERSION + 1, TOKEN), 1008),
        (Ping(), 1008),
        (Generate("r", messages=HI), 1008),
    ],
)
async def test_a_bad_hello_closes(served: Served, first: ToEngine, code: int) -> None:
    async with websockets.connect(served.link) as socket:
        await Peer(socket).send(first)
        assert (await Peer(socket).closed())[0] == code
    assert not served.app._link.links


async def test_no_hello_closes(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.server.link_endpoint, "HELLO_TIMEOUT_S", 0.05)
    async with websockets.connect(served.link) as socket:
        assert await Peer(socket).closed() == (1008, "no hello came")


async def test_a_wrong_header_is_refused_before_the_upgrade(served: Served) -> None:
    for path in (served.link, served.link + "/", served.http.replace("http", "ws") + "/other"):
        with pytest.raises(InvalidStatus) as caught:
            await websockets.connect(path, additional_headers={"authorization": "Bearer wrong"})
        assert caught.value.response.status_code == 401
    async with linked(served, additional_headers=served.headers):
        pass


async def test_a_second_hello_closes(peer: Peer) -> None:
    await peer.send(Hello(PROTOCOL_VERSION, TOKEN))
    assert (await peer.closed())[0] == 1008


# requests ------------------------------------------------------------------------------------


async def test_a_request_from_acceptance_to_usage(peer: Peer) -> None:
    await peer.send(Generate("r", messages=HI, sampling=GREEDY, max_tokens=7))
    answer = await peer.answer("r")
    assert answer[0] == Accepted("r", len(HI_IDS))
    assert isinstance(answer[1], Started)
    assert text_of(answer) == alone(HI_IDS, 7)
    last = answer[-1]
    assert isinstance(last, Event)
    assert last.finish == "length"
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (len(HI_IDS), 7)


async def test_requests_run_side_by_side(peer: Peer) -> None:
    for i in range(20):
        await peer.send(Generate(f"r{i}", prompts=[f"p{i}"], sampling=GREEDY, max_tokens=9))
    texts: dict[str, str] = {f"r{i}": "" for i in range(20)}
    ended: set[str] = set()
    shared = 0
    while len(ended) < 20:
        frame = await peer.receive()
        if isinstance(frame, Events):
            shared = max(shared, len({event.id for event in frame.events}))
            for event in frame.events:
                assert event.id not in ended
                texts[event.id] += event.text
                if event.usage is not None:
                    ended.add(event.id)
    assert texts == {f"r{i}": alone([*f"p{i}".encode()], 9) for i in range(20)}
    assert shared > 1


async def test_echo_comes_before_the_output(peer: Peer) -> None:
    frame = Generate("r", prompts=["ab", [99]], n=2, sampling=GREEDY, max_tokens=3, echo=True)
    await peer.send(frame)
    answer = await peer.answer("r")
    texts = ["", "", "", ""]
    for item in answer:
        if isinstance(item, Event):
            texts[item.choice] += item.text
    ab, c = "ab" + alone([*b"ab"], 3), "c" + alone([99], 3)
    assert texts == [ab, ab, c, c]
    assert isinstance(answer[0], Accepted)


@pytest.mark.parametrize(
    ("frame", "code", "param"),
    [
        (Generate("r"), "invalid_value", None),
        (Generate("r", messages=HI, prompts=["x"]), "invalid_value", None),
        (Generate("r", messages=HI, n=0), "invalid_value", "n"),
        (Generate("r", prompts=[[258]]), "invalid_value", "prompt"),
        (Generate("r", prompts=[[-1]]), "invalid_value", "prompt"),
        (Generate("r", prompts=[[2**70]]), "invalid_value", "prompt"),
        (Generate("r", prompts=[""]), "invalid_value", "prompt"),
        (Generate("r", prompts=[]), "invalid_value", "prompt"),
        (Generate("r", prompts=["x"] * 5000), "invalid_value", "prompt"),
        (Generate("r", prompts=["x" * 3000]), "context_length_exceeded", "prompt"),
        (Generate("r", prompts=["x" * 3_000_000]), "context_length_exceeded", "prompt"),
        (Generate("r", messages=HI, max_tokens=4000), "context_length_exceeded", "messages"),
        (Generate("r", messages=HI, sampling=Sampling(logit_bias={258: 1})), "invalid_value",
         "logit_bias"),
        (Generate("r", messages=HI, timeout_ms=0), "deadline_exceeded", None),
        (Generate("r", messages=[{"role": "user", "content": "refuse me"}]), "invalid_value",
         "messages"),
        (Count("r"), "invalid_value", None),
        (Count("r", text="x" * 1_000_001), "context_length_exceeded", "prompt"),
        (Count("r", messages=[{"role": "user", "content": "x" * 200_000}]),
         "context_length_exceeded", "messages"),
    ],
)  # fmt: skip
async def test_a_bad_request_ends_itself_only(
    served: Served, peer: Peer, frame: ToEngine, code: str, param: str | None
) -> None:
    await peer.send(frame)
    answer = await peer.answer("r")
    assert len(answer) == 1
    assert isinstance(answer[0], Failed)
    assert (answer[0].code, answer[0].param) == (code, param)
    await peer.send(Generate("next", messages=HI, sampling=GREEDY, max_tokens=2))
    assert text_of(await peer.answer("next")) == alone(HI_IDS, 2)
    assert served.drained()


async def test_a_template_that_breaks_ends_its_request_only(peer: Peer) -> None:
    await peer.send(Generate("r", messages=[{"content": "no role"}]))
    (failed,) = await peer.answer("r")
    assert isinstance(failed, Failed)
    assert failed.code == "internal_error"
    await peer.send(Ping())
    assert await peer.receive() == Pong()


async def test_counting(peer: Peer) -> None:
    await peer.send(Count("a", messages=HI))
    assert await peer.answer("a") == [Counted("a", len(HI_IDS))]
    await peer.send(Count("b", text="hello"))
    assert await peer.answer("b") == [Counted("b", 5)]
    await peer.send(Count("c", messages=HI, tools=[{"function": {"name": "look"}}]))
    assert await peer.answer("c") == [Counted("c", len(HI_IDS) + 5)]


async def test_an_id_used_again_while_it_runs_closes(slow: Served) -> None:
    async with linked(slow) as peer:
        for _ in range(2):
            await peer.send(Generate("r", messages=HI, max_tokens=1000))
        assert await peer.closed() == (1008, "an id was used again")
    await until(slow.drained)


# cancel, pause -------------------------------------------------------------------------------


async def test_cancel_while_running(slow: Served) -> None:
    async with linked(slow) as peer:
        await peer.send(Generate("r", messages=HI, max_tokens=2000))
        while not isinstance(await peer.receive(), Events):
            pass
        await peer.send(Cancel("r"))
        last = (await peer.answer("r"))[-1]
        assert isinstance(last, Failed)
        assert last.code == "cancelled"
        await until(slow.drained)
        await peer.send(Cancel("r"))
        await peer.send(Cancel("never was"))
        await peer.send(Ping())
        assert await peer.receive() == Pong()


async def test_cancel_while_it_is_being_tokenised(
    served: Served, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def request(self: object, frame: Generate) -> Any:
        began.set()
        await go_on.wait()

    monkeypatch.setattr("engine.server.intake.Intake.request", request)
    await peer.send(Generate("r", messages=HI))
    await began.wait()
    await peer.send(Ping())
    assert await peer.receive() == Pong()
    await peer.send(Cancel("r"))
    (failed,) = await peer.answer("r")
    assert isinstance(failed, Failed)
    assert failed.code == "cancelled"
    assert served.engine.core.statistics().requests_accepted == 0


async def test_pause_and_resume(slow: Served) -> None:
    async with linked(slow) as peer:
        await peer.send(Generate("r", messages=HI, sampling=GREEDY, max_tokens=200))
        assert isinstance(await peer.receive(), Accepted)
        await peer.send(Pause("r"))
        await until(lambda: slow.engine.core.statistics().paused == 1)
        tokens = slow.engine.core.statistics().generation_tokens
        await peer.send(Generate("other", messages=HI, sampling=GREEDY, max_tokens=5))
        await until(lambda: slow.engine.core.statistics().generation_tokens == tokens + 5)
        await peer.send(Resume("r"))
        texts = {"r": "", "other": ""}
        ended = 0
        while ended < 2:
            frame = await peer.receive()
            for event in frame.events if isinstance(frame, Events) else []:
                texts[event.id] += event.text
                ended += event.usage is not None
        assert texts == {"r": alone(HI_IDS, 200), "other": alone(HI_IDS, 5)}
    await until(slow.drained)


# leaving -------------------------------------------------------------------------------------


async def test_a_dropped_connection_cancels_what_was_on_it_and_nothing_else(slow: Served) -> None:
    async with linked(slow) as other:
        await other.send(Generate("r", messages=HI, sampling=GREEDY, max_tokens=300))
        async with linked(slow) as peer:
            for i in range(10):
                await peer.send(Generate(f"r{i}", messages=HI, max_tokens=2000))
            await until(lambda: slow.engine.core.statistics().running == 11)
        await until(lambda: slow.engine.core.statistics().running == 1)
        assert text_of(await other.answer("r")) == alone(HI_IDS, 300)
    await until(slow.drained)


def _reset(peer: Peer) -> None:
    """Closing with this option set sends a TCP reset."""
    raw = peer.socket.transport.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.socket.transport.abort()


@pytest.mark.parametrize("way", [1000, 1001, "reset"])
async def test_300_goodbyes_leave_no_trace(
    slow: Served, way: int | str, caplog: pytest.LogCaptureFixture
) -> None:
    """B33."""
    unhandled: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: unhandled.append(context))

    async def visit(number: int) -> None:
        async with linked(slow) as peer:
            await peer.send(Generate("r", messages=HI, max_tokens=2000))
            await asyncio.sleep((0.005, 0.05, 0.5)[number % 10 // 4])
            if way == "reset":
                _reset(peer)
            else:
                await peer.socket.close(int(way))

    for batch in range(4):
        await asyncio.gather(*(visit(batch * 25 + i) for i in range(25)))
    await until(slow.drained)
    assert not slow.app._link.links
    assert not unhandled
    assert "Traceback" not in caplog.text
    assert "never retrieved" not in caplog.text
    loop.set_exception_handler(None)


async def test_the_engine_fails_while_the_peer_leaves(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()

    def run(batch: Any) -> None:
        gate(batch)
        raise RuntimeError("the device is gone")

    async with serve(fake_engine(on_run=run)) as served:
        for _ in range(2):
            async with linked(served) as peer:
                await peer.send(Generate("r", messages=HI))
                await until(lambda: served.engine.core.statistics().running == 1)
                gate.let(1)
                _reset(peer)
            await until(served.drained)
        gate.open()
    assert "never retrieved" not in caplog.text


# slow readers --------------------------------------------------------------------------------


async def test_a_peer_that_does_not_read_is_paused_and_then_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine.server.send_queue, "PAUSE_BYTES", 20_000)
    monkeypatch.setattr(engine.server.send_queue, "STALL_S", 0.5)
    async with (
        serve(fake_engine(max_model_len=65536, num_blocks=8192)) as served,
        linked(served) as other,
        linked(served, max_queue=1) as peer,
    ):
        sampling = Sampling(logprobs=20)
        await peer.send(Generate("r", messages=HI, n=4, max_tokens=12_000, sampling=sampling))
        peer.socket.transport.pause_reading()
        await until(lambda: served.engine.core.statistics().paused == 4, 20)
        await other.send(Generate("r", messages=HI, sampling=GREEDY, max_tokens=5))
        assert text_of(await other.answer("r")) == alone(HI_IDS, 5)
        await until(lambda: len(served.app._link.links) == 1)
        await until(served.drained)
        assert served.engine.core.statistics().generation_tokens < 48_000
        peer.socket.transport.abort()


async def test_a_peer_that_reads_slowly_gets_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine.server.send_queue, "PAUSE_BYTES", 5_000)
    monkeypatch.setattr(engine.server.send_queue, "RESUME_BYTES", 1_000)
    async with (
        serve(fake_engine(max_model_len=65536, num_blocks=8192)) as served,
        linked(served, max_queue=1) as peer,
    ):
        told = Sampling(temperature=0, allowed_token_ids=LETTERS, logprobs=20)
        await peer.send(Generate("r", messages=HI, n=4, max_tokens=1500, sampling=told))
        peer.socket.transport.pause_reading()
        await until(lambda: served.engine.core.statistics().paused == 4, 20)
        peer.socket.transport.resume_reading()
        answer = await peer.answer("r")
        texts = ["", "", "", ""]
        for item in answer:
            if isinstance(item, Event):
                texts[item.choice] += item.text
        assert [len(text) for text in texts] == [1500] * 4
        assert texts[0] == alone(HI_IDS, 1500)


# bad frames ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("", 1007),
        ("{", 1007),
        ('{"type":"bogus"}', 1007),
        ('{"type":"cancel","id":5}', 1007),
        ("[" * 100_000, 1007),
    ],
)
async def test_what_is_no_frame_closes(peer: Peer, message: str, code: int) -> None:
    await peer.socket.send(message)
    assert (await peer.closed())[0] == code


@pytest.mark.parametrize(
    "wrong",
    [
        '{"type":"generate","id":"bad","max_tokens":0.5}',
        '{"type":"generate","id":"bad","prompts":[{}]}',
        '{"type":"count","id":"bad","text":5}',
    ],
)
async def test_a_request_that_cannot_be_read_fails_alone(
    slow: Served, caplog: pytest.LogCaptureFixture, wrong: str
) -> None:
    """One client's odd field must not end the answers of all others on the link."""
    async with linked(slow) as peer:
        await peer.send(Generate("good", messages=HI, max_tokens=40, sampling=GREEDY))
        assert isinstance(await peer.receive(), Accepted)
        await peer.socket.send(wrong)
        others, failed = [], None
        while failed is None:
            frame = await peer.receive()
            if isinstance(frame, Failed):
                failed = frame
            others += frame.events if isinstance(frame, Events) else []
        assert (failed.id, failed.code) == ("bad", "internal_error")
        assert "Expected" in caplog.text
        text = "".join(event.text for event in others)
        assert text + text_of(await peer.answer("good")) == alone(HI_IDS, 40)


async def test_a_frame_over_the_limit_closes_1009(served: Served) -> None:
    """B31."""
    async with linked(served) as other:
        # Not closed by us: the library's `close` trips over a connection lost in mid-send.
        peer = Peer(await websockets.connect(served.link))
        await peer.send(Hello(PROTOCOL_VERSION, TOKEN))
        with contextlib.suppress(ConnectionClosed):
            await peer.socket.send(" " * (MAX_FRAME_BYTES + 1))
        assert (await peer.closed())[0] == 1009
        await peer.socket.wait_closed()
        await other.send(Ping())
        assert await other.receive() == Pong()


async def test_bad_utf_8_closes_1007(peer: Peer) -> None:
    """B31."""
    await peer.socket.send(b'{"type":"ping\xff"}', text=True)
    assert (await peer.closed())[0] == 1007


@pytest.mark.parametrize(("junk", "code"), [(b"\xff", 1007), (b" " * (MAX_FRAME_BYTES + 1), 1009)])
async def test_a_bad_frame_amid_a_stream_leaves_no_traceback(
    slow: Served, caplog: pytest.LogCaptureFixture, junk: bytes, code: int
) -> None:
    peer = Peer(await websockets.connect(slow.link, max_queue=None))
    await peer.send(Hello(PROTOCOL_VERSION, TOKEN))
    await peer.send(Generate("r", messages=HI, max_tokens=2000))
    await until(lambda: slow.engine.core.statistics().generation_tokens > 5)
    with contextlib.suppress(ConnectionClosed):
        await peer.socket.send(junk, text=True)
    assert (await peer.closed())[0] == code
    await peer.socket.wait_closed()
    await until(slow.drained)
    assert "Traceback" not in caplog.text


async def test_too_many_requests_at_once_close(
    slow: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.server.link, "MAX_ACTIVE", 3)
    async with linked(slow) as peer:
        for i in range(4):
            await peer.send(Generate(f"r{i}", messages=HI, max_tokens=1000))
        assert await peer.closed() == (1008, "too many requests at once")
    await until(slow.drained)


async def test_binary_frames_and_fragments_are_frames_too(peer: Peer) -> None:
    """B31."""
    await peer.socket.send(encode(Ping()))
    assert await peer.receive() == Pong()
    data = encode(Count("r", text="x" * 2000)).decode()
    await peer.socket.send(iter([data[:5], *data[5:]]))
    assert await peer.answer("r") == [Counted("r", 2000)]


async def test_a_frame_just_within_the_limit_is_read(peer: Peer) -> None:
    frame = encode(Count("r", messages=[{"role": "user", "content": ""}]))
    padding = " " * (MAX_FRAME_BYTES - len(frame))
    await peer.socket.send(frame.decode() + padding)
    assert await peer.answer("r") == [Counted("r", 6)]


# company -------------------------------------------------------------------------------------


async def test_statistics_come_when_they_change(slow: Served) -> None:
    async with linked(slow) as peer:
        await peer.send(Generate("r", messages=HI, max_tokens=2000))
        async with asyncio.timeout(5):
            while True:
                frame = decode_from_engine(await peer.socket.recv())
                if isinstance(frame, Stats) and frame.running == 1:
                    break
        assert 0 < frame.kv_usage_ratio < 1


@pytest.mark.parametrize("text", ["^" * 1_000_000, " " * 1_000_000, "x" * 200_000, "🧵" * 200_000])
async def test_health_answers_while_a_million_characters_are_counted(text: str) -> None:
    """B17."""
    delays = []
    async with (
        serve(fake_engine(max_model_len=300_000)) as served,
        linked(served) as peer,
        httpx2.AsyncClient(base_url=served.http) as session,
    ):
        await session.get("/health/live")
        for i in range(4):
            await peer.send(Count(f"c{i}", text=text))
        counted = 0
        while counted < 4:
            began = time.monotonic()
            assert (await session.get("/health/live")).status_code == 200
            delays.append(time.monotonic() - began)
            while True:
                try:
                    async with asyncio.timeout(0.01):
                        frame = await peer.receive()
                except TimeoutError:
                    break
                assert isinstance(frame, Counted)
                assert frame.tokens == len(text.encode())
                counted += 1
    assert sorted(delays)[int(len(delays) * 0.99) - 1] < 0.25
