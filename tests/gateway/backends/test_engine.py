"""The engine backend against a fake engine on a real WebSocket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from engine.protocol.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    FewerError,
    InternalFault,
    InvalidRequest,
    Overloaded,
    TooLarge,
    Unavailable,
)
from engine.protocol.frames import (
    MAX_FRAME_BYTES,
    Accepted,
    Cancel,
    Event,
    Events,
    Failed,
    Generate,
    Pause,
    Pong,
    Resume,
    Started,
    Stats,
    StreamEvent,
    TokenLogprob,
    ToolDelta,
    Usage,
)
from gateway.backends import engine as engine_module
from gateway.backends.engine import HARD_BYTES, PAUSE_BYTES, EngineBackend
from gateway.backends.link import EngineLink, Timing
from tests.fakes.calls import HELLO, chat_call, completion_call, drain, failure, finishes, text_of
from tests.fakes.engine_link import TOKEN, WELCOME, FakeEngine
from tests.fakes.upstream import Reply, ScriptedUpstream

QUICK = Timing(wait_s=0.3, first_backoff_s=0.01, max_backoff_s=0.02)
WATCHFUL = Timing(open_s=0.1, wait_s=0.1, ping_s=0.02, unheard_pings=3, first_backoff_s=0.01)


@asynccontextmanager
async def linked(
    timing: Timing = QUICK, token: str = TOKEN
) -> AsyncIterator[tuple[FakeEngine, EngineBackend]]:
    async with FakeEngine() as engine:
        backend = EngineBackend("small", engine.url, token, timing=timing)
        try:
            yield engine, backend
        finally:
            await backend.aclose()


def ending(id: str, text: str = "") -> Events:
    return Events([Event(id, text=text, tokens=1, finish="stop", usage=Usage(5, 1))])


async def until_ready(backend: EngineBackend, ready: bool = True) -> None:
    async with asyncio.timeout(10):
        while await backend.ready() != ready:  # noqa: ASYNC110 - polled, as probes do
            await asyncio.sleep(0.005)


async def test_a_whole_answer() -> None:
    async with linked() as (engine, backend):
        stream = await backend.generate(chat_call("r1"))
        await engine.say(Started("r1", 3, 0.5))
        await engine.say(Events([Event("r1", text="Hel", tokens=1)]))
        await engine.say(ending("r1", "lo"))
        events = await drain(stream)
        assert events[:2] == [Accepted("r1", 5), Started("r1", 3, 0.5)]
        assert text_of(events) == "Hello"
        assert finishes(events) == {0: "stop"}
        assert await stream.receive() == []
        assert repr(backend) == "<EngineBackend <EngineLink small up, 0 running>>"
        assert [type(frame) for frame in engine.frames] == [Generate]


async def test_what_a_request_becomes() -> None:
    async with linked() as (engine, backend):
        call = chat_call("r1", max_tokens=7, n=2, parameters={"temperature": 0, "stop": "x"})
        call = type(call)(
            call.id, call.request, tenant="acme", salt="pepper", weight=2.0, priority=3,
            deadline_s=asyncio.get_running_loop().time() + 60, expected_tokens=9, traceparent="tp",
        )  # fmt: skip
        await backend.generate(call)
        sent = await engine.taken(Generate)
    assert sent.messages == HELLO
    assert (sent.max_tokens, sent.n) == (7, 2)
    assert (sent.sampling.temperature, sent.sampling.stop) == (0, ["x"])
    assert (sent.tenant, sent.salt, sent.weight, sent.priority) == ("acme", "pepper", 2.0, 3)
    assert (sent.expected_tokens, sent.traceparent) == (9, "tp")
    assert sent.timeout_ms is not None
    assert 50_000 < sent.timeout_ms <= 60_000


async def test_completions_travel_as_prompts() -> None:
    async with linked() as (engine, backend):
        await backend.generate(completion_call("r1", prompts=["Once", [1, 2]], max_tokens=3))
        sent = await engine.taken(Generate)
    assert sent.prompts == ["Once", [1, 2]]
    assert sent.messages is None


async def test_calls_share_one_connection_and_do_not_mix() -> None:
    async with linked() as (engine, backend):
        calls = [backend.generate(chat_call(f"r{number}")) for number in range(20)]
        streams = await asyncio.gather(*calls)
        await engine.say(Events([Event(f"r{n}", text=f"{n} ") for n in range(20)]))
        await engine.say(
            Events([e for n in reversed(range(20)) for e in ending(f"r{n}", "end").events])
        )
        for number, stream in enumerate(streams):
            assert text_of(await drain(stream)) == f"{number} end"
        assert engine.connections == 1


async def test_what_the_engine_cannot_do_is_refused_before_it_is_asked() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    async with linked() as (engine, backend):
        with pytest.raises(InvalidRequest):
            await backend.generate(chat_call(messages=[{"role": "user", "content": [image]}]))
        assert engine.frames == []
        with pytest.raises(InvalidRequest, match="makes no embeddings"):
            await backend.embed({"input": "x"})


@pytest.mark.parametrize(
    ("failed", "kind"),
    [
        (Failed("r1", "context_length_exceeded", "long", "messages"), ContextLengthExceeded),
        (Failed("r1", "overloaded", "full", retry_after_s=3), Overloaded),
        (Failed("r1", "unavailable", "draining", retry_after_s=3), Unavailable),
    ],
)
async def test_a_refusal_is_raised(failed: Failed, kind: type[FewerError]) -> None:
    async with linked() as (engine, backend):
        engine.accepts = False
        starting = asyncio.create_task(backend.generate(chat_call("r1")))
        await engine.taken(Generate)
        await engine.say(failed)
        with pytest.raises(kind) as refused:
            await starting
        assert refused.value.message == failed.message
        assert refused.value.param == failed.param
        assert refused.value.retry_after_s == failed.retry_after_s


async def test_a_failure_after_acceptance_arrives_in_the_stream() -> None:
    async with linked() as (engine, backend):
        stream = await backend.generate(chat_call("r1"))
        await engine.say(Failed("r1", "internal_error", "boom"))
        assert failure(await drain(stream)).message == "boom"
        assert [type(frame) for frame in engine.frames] == [Generate]


async def test_closing_a_stream_cancels_it_and_late_events_are_dropped() -> None:
    async with linked() as (engine, backend):
        stream = await backend.generate(chat_call("r1"))
        other = await backend.generate(chat_call("r2"))
        for _ in range(2):
            await engine.taken(Generate)
        await stream.aclose()
        await stream.aclose()
        assert await engine.taken(Cancel) == Cancel("r1")
        await engine.say(Events([Event("r1", text="late"), Event("r2", text="on")]))
        await engine.say(Failed("r1", "cancelled", "gone"))
        await engine.say(ending("r2", " time"))
        assert text_of(await drain(other)) == "on time"
        assert await stream.receive() == []
        assert len(engine.frames) == 3


async def test_the_cancel_frame_leaves_within_one_turn_of_the_loop() -> None:
    async with linked() as (_, backend):
        stream = await backend.generate(chat_call("r1"))
        link: EngineLink = backend._link
        await stream.aclose()
        assert len(link._outbox) == 1
        await asyncio.sleep(0)
        assert link._outbox == []


async def test_cancelling_the_start_cancels_the_call() -> None:
    async with linked() as (engine, backend):
        engine.accepts = False
        starting = asyncio.create_task(backend.generate(chat_call("r1")))
        await engine.taken(Generate)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert await engine.taken(Cancel) == Cancel("r1")
        assert "0 running" in repr(backend)


async def test_a_reader_that_stops_pauses_its_call_and_no_other() -> None:
    piece = "x" * 1000
    async with linked() as (engine, backend):
        slow = await backend.generate(chat_call("slow"))
        quick = await backend.generate(chat_call("quick"))
        for _ in range(2):
            await engine.taken(Generate)
        for _ in range(PAUSE_BYTES // 1000 + 1):
            await engine.say(Events([Event("slow", text=piece), Event("quick", text=".")]))
        assert await engine.taken(Pause) == Pause("slow")
        await engine.say(ending("quick"))
        assert text_of(await drain(quick)) == "." * (PAUSE_BYTES // 1000 + 1)
        events = await slow.receive()
        assert await engine.taken(Resume) == Resume("slow")
        await engine.say(ending("slow", "end"))
        events += await drain(slow)
        assert len(text_of(events)) == 1000 * (PAUSE_BYTES // 1000 + 1) + 3


async def test_logprobs_count_against_the_bound() -> None:
    top = [TokenLogprob("a", number, -1.0) for number in range(20)]
    event = Event("r1", text="a", logprobs=[TokenLogprob("a", 1, -1.0, [97], top)])
    async with linked() as (engine, backend):
        await backend.generate(chat_call("r1"))
        await engine.taken(Generate)
        await engine.say(Events([event] * 40))
        assert await engine.taken(Pause) == Pause("r1")


async def test_a_stream_past_the_hard_bound_ends() -> None:
    async with linked() as (engine, backend):
        stream = await backend.generate(chat_call("r1"))
        await engine.taken(Generate)
        for _ in range(3):
            await engine.say(Events([Event("r1", text="x" * (HARD_BYTES // 2))]))
        await engine.taken(Pause)
        assert await engine.taken(Cancel) == Cancel("r1")
        failed = failure(await drain(stream))
        assert (failed.code, "too slow" in failed.message) == ("overloaded", True)


async def test_a_lost_connection_ends_what_ran_and_comes_back() -> None:
    """B53: SIGKILL during streams, and a request that is waiting to be accepted."""
    async with linked() as (engine, backend):
        streams = [await backend.generate(chat_call(f"r{number}")) for number in range(3)]
        engine.accepts = False
        waiting = asyncio.create_task(backend.generate(chat_call("queued")))
        for _ in range(4):
            await engine.taken(Generate)
        engine.drop()
        for stream in streams:
            failed = failure(await drain(stream))
            assert failed.code == "unavailable"
            assert failed.retry_after_s is not None
        with pytest.raises(Unavailable) as refused:
            await waiting
        assert refused.value.retry_after_s is not None
        engine.accepts = True
        await engine.connected(2)
        stream = await backend.generate(chat_call("again"))
        await engine.say(ending("again", "back"))
        assert text_of(await drain(stream)) == "back"


async def test_a_call_waits_shortly_for_an_engine_that_is_coming() -> None:
    async with FakeEngine() as first:
        port = first.port
        backend = EngineBackend("small", first.url, TOKEN, timing=QUICK)
        await until_ready(backend)
    await until_ready(backend, ready=False)
    starting = asyncio.create_task(backend.generate(chat_call("r1")))
    async with FakeEngine(port) as second:
        stream = await starting
        await second.say(ending("r1", "hi"))
        assert text_of(await drain(stream)) == "hi"
        await backend.aclose()


async def test_without_an_engine_calls_are_told_when_to_come_back() -> None:
    async with FakeEngine() as gone:
        url = gone.url
    backend = EngineBackend("small", url, TOKEN, timing=QUICK)
    assert not await backend.ready()
    with pytest.raises(Unavailable, match="cannot be reached") as refused:
        await backend.generate(chat_call())
    assert refused.value.retry_after_s is not None
    deadline_s = asyncio.get_running_loop().time() - 1
    with pytest.raises(Unavailable):
        await backend.generate(chat_call(deadline_s=deadline_s))
    await backend.aclose()


async def test_an_engine_that_says_nothing_counts_as_gone() -> None:
    """B53: SIGSTOP. Sockets stay open, nothing is answered; then it continues."""
    async with linked(WATCHFUL) as (engine, backend):
        stream = await backend.generate(chat_call("r1"))
        assert await backend.ready()
        engine.silent = True
        failed = failure(await drain(stream))
        assert failed.code == "unavailable"
        await until_ready(backend, ready=False)
        with pytest.raises(Unavailable):
            await backend.generate(chat_call("r2"))
        engine.silent = False
        await until_ready(backend)


async def test_pings_keep_an_idle_connection() -> None:
    async with linked(WATCHFUL) as (engine, backend):
        await until_ready(backend)
        await asyncio.sleep(10 * WATCHFUL.ping_s)
        assert engine.connections == 1
        assert await backend.ready()


def test_a_stopped_engine_is_noticed_within_ten_seconds() -> None:
    timing = Timing()
    assert timing.ping_s * (timing.unheard_pings + 1) < 10


async def test_a_wrong_token_is_said_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with linked(token="wrong") as (engine, backend):
        with pytest.raises(Unavailable, match="cannot be reached"):
            await backend.generate(chat_call())
        assert engine.connections == 0
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(told) == 1
    assert "the token is wrong" in told[0]
    assert "FEWER_ENGINE_TOKEN" in told[0]


@pytest.mark.parametrize(
    ("welcome", "complaint"),
    [
        (type(WELCOME)(99, "m", "x", 1, 1, 1), "speaks protocol 99, this gateway 2"),
        (Pong(), "did not begin with a welcome"),
        (Failed("", "unavailable", "The engine is draining."), "is draining"),
    ],
)
async def test_a_strange_welcome_is_no_connection(
    welcome: Any, complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with linked() as (engine, backend):
        engine.welcome = welcome
        with pytest.raises(Unavailable):
            await backend.generate(chat_call())
        assert not await backend.ready()
    assert complaint in caplog.text


async def test_no_welcome_at_all(caplog: pytest.LogCaptureFixture) -> None:
    async with linked(Timing(open_s=0.05, wait_s=0.2, first_backoff_s=0.01)) as (engine, backend):
        engine.silent = True
        with pytest.raises(Unavailable):
            await backend.generate(chat_call())
    assert "did not say welcome" in caplog.text


async def test_a_redirect_is_not_followed(caplog: pytest.LogCaptureFixture) -> None:
    """The token must not reach an address that the configuration does not name."""
    async with FakeEngine() as other:
        moved = Reply([], 307, headers={"location": other.url})
        async with ScriptedUpstream([moved]) as upstream:
            url = f"ws://127.0.0.1:{upstream.port}/v1/engine"
            backend = EngineBackend("small", url, TOKEN, timing=QUICK)
            with pytest.raises(Unavailable):
                await backend.generate(chat_call())
            await backend.aclose()
        assert other.connections == 0
    assert "does not speak the engine's WebSocket protocol" in caplog.text


@pytest.mark.parametrize(
    "said", [b"{", b'{"type":"nothing"}', b'{"type":"error","id":"","code":"x","message":"m"}']
)
async def test_nonsense_ends_the_connection_and_what_ran_on_it(said: bytes) -> None:
    async with linked() as (engine, backend):
        stream = await backend.generate(chat_call("r1"))
        await engine.say(said)
        assert failure(await drain(stream)).code == "unavailable"
        await engine.connected(2)


async def test_an_oversized_request_is_refused_alone() -> None:
    big = [{"role": "user", "content": "x" * MAX_FRAME_BYTES}]
    async with linked() as (engine, backend):
        with pytest.raises(TooLarge, match=str(MAX_FRAME_BYTES)):
            await backend.generate(chat_call("r1", messages=big))
        stream = await backend.generate(chat_call("r2"))
        await engine.say(ending("r2", "ok"))
        assert text_of(await drain(stream)) == "ok"


async def test_an_outbox_that_is_not_emptied_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.backends.link.MAX_OUTBOX_BYTES", 1000)
    long = [{"role": "user", "content": "x" * 2000}]
    async with linked() as (_, backend):
        with pytest.raises(Overloaded, match="not taking requests"):
            await backend.generate(chat_call(messages=long))


async def test_an_id_in_use_is_a_fault_of_ours() -> None:
    async with linked() as (_, backend):
        await backend.generate(chat_call("r1"))
        with pytest.raises(InternalFault, match="in use"):
            await backend.generate(chat_call("r1"))


async def test_deadlines_hold_without_the_engines_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "DEADLINE_GRACE_S", 0.01)
    async with linked() as (engine, backend):
        await until_ready(backend)
        loop = asyncio.get_running_loop()
        stream = await backend.generate(chat_call("r1", deadline_s=loop.time() + 0.05))
        failed = failure(await drain(stream))
        assert failed.code == "deadline_exceeded"
        await engine.taken(Generate)
        assert await engine.taken(Cancel) == Cancel("r1")
        engine.accepts = False
        with pytest.raises(DeadlineExceeded):
            await backend.generate(chat_call("r2", deadline_s=loop.time() + 0.05))
        with pytest.raises(DeadlineExceeded):
            await backend.generate(chat_call("r3", deadline_s=loop.time() - 1))


async def test_closing_ends_everything_in_band() -> None:
    async with linked() as (engine, backend):
        stream = await backend.generate(chat_call("r1"))
        await stream.receive()
        waiting = asyncio.create_task(drain(stream))
        await asyncio.sleep(0)
        await backend.aclose()
        assert failure(await waiting).message == "The gateway is shutting down."
        assert not await backend.ready()
        with pytest.raises(Unavailable, match="shutting down"):
            await backend.generate(chat_call("r2"))
        assert repr(backend) == "<EngineBackend <EngineLink small closed, 0 running>>"
        assert engine.connections == 1


async def test_stats_are_kept() -> None:
    async with linked() as (engine, backend):
        stream = await backend.generate(chat_call("r1"))
        await engine.say(Stats(1, 0, 0.25))
        await engine.say(ending("r1"))
        await drain(stream)
        assert backend._link.stats == Stats(1, 0, 0.25)


async def test_arguments_of_tools_count_against_the_bound() -> None:
    async with linked() as (engine, backend):
        await backend.generate(chat_call("r1"))
        await engine.taken(Generate)
        tool = ToolDelta(0, arguments="x" * (PAUSE_BYTES + 1))
        await engine.say(Events([Event("r1", kind="tool", tool=tool)]))
        assert await engine.taken(Pause) == Pause("r1")


async def test_closing_ends_the_wait_for_an_engine() -> None:
    async with FakeEngine() as gone:
        url = gone.url
    backend = EngineBackend("small", url, TOKEN, timing=Timing(wait_s=60))
    starting = asyncio.create_task(backend.generate(chat_call()))
    await asyncio.sleep(0)
    await backend.aclose()
    with pytest.raises(Unavailable, match="shutting down"):
        await starting


async def test_a_link_that_died_of_a_fault_of_ours_is_started_anew(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with linked() as (engine, backend):
        stream = await backend.generate(chat_call("r1"))
        with monkeypatch.context() as patched:
            patched.setattr(backend._link, "_dispatch", lambda frame: 1 / 0)
            await engine.say(Pong())
            assert failure(await drain(stream)).code == "unavailable"
        stream = await backend.generate(chat_call("r2"))
        await engine.say(ending("r2", "ok"))
        assert text_of(await drain(stream)) == "ok"
    assert "ZeroDivisionError" in caplog.text


async def test_a_link_without_a_connection_takes_nothing() -> None:
    """It may have broken between the waiting and the call."""

    class Nobody:
        def deliver(self, event: StreamEvent) -> None:
            raise AssertionError(event)

    link = EngineLink("small", "ws://127.0.0.1:1", TOKEN, QUICK)
    with pytest.raises(Unavailable, match="cannot be reached"):
        link.open(Generate("r1", messages=HELLO), Nobody())
    link.post(Pause("r1"))
    assert repr(link) == "<EngineLink small down, 0 running>"
