"""The circuit breaker: when it opens, what counts, and how it closes again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.protocol.errors import InvalidRequest, Overloaded, Unavailable, UpstreamFailed
from gateway.backends.breaker import Breaker, GuardedBackend
from gateway.backends.scripted import ScriptedBackend
from tests.fakes.calls import chat_call, drain, text_of
from tests.fakes.clock import FakeClock

Steps = list[dict[str, Any]]

REFUSED: Steps = [{"refuse": {"code": "upstream_failed"}}]
HANGING: Steps = [{"text": "a"}, {"hang": True}]
BROKEN: Steps = [{"text": "a"}, {"fail": {"code": "upstream_failed"}}]
WRONG: Steps = [{"refuse": {"code": "invalid_value"}}]
BUSY: Steps = [{"refuse": {"code": "overloaded", "retry_after_s": 1}}]
GOOD: Steps = [{"text": "ok"}]


def guarded(clock: FakeClock, *scripts: Steps) -> GuardedBackend:
    breaker = Breaker(failures_to_open=3, open_s=5, clock=clock)
    return GuardedBackend(ScriptedBackend("large", {"scripts": list(scripts)}), breaker)


def status(backend: GuardedBackend) -> str:
    return repr(backend).removeprefix("<GuardedBackend large <Breaker ").removesuffix(">>")


async def fail(backend: GuardedBackend, times: int) -> None:
    for _ in range(times):
        with pytest.raises(UpstreamFailed):
            await backend.generate(chat_call())


async def test_it_opens_after_failures_in_a_row() -> None:
    backend = guarded(FakeClock(), REFUSED)
    await fail(backend, 2)
    assert repr(backend) == "<GuardedBackend large <Breaker closed, 2 failures>>"
    assert await backend.ready()
    await fail(backend, 1)
    assert status(backend) == "open, 3 failures"
    assert not await backend.ready()
    with pytest.raises(Unavailable, match="keeps failing") as refused:
        await backend.generate(chat_call())
    assert refused.value.retry_after_s == 5
    inner = backend.inner
    assert isinstance(inner, ScriptedBackend)
    assert len(inner.calls) == 3


async def test_streams_that_break_count_but_their_beginning_was_a_sign_of_life() -> None:
    backend = guarded(FakeClock(), [{"fail": {"code": "unavailable"}}])
    for _ in range(3):
        await drain(await backend.generate(chat_call()))
    assert status(backend) == "open, 3 failures"


async def test_a_success_starts_the_count_anew() -> None:
    backend = guarded(FakeClock(), REFUSED, REFUSED, GOOD, REFUSED, REFUSED)
    await fail(backend, 2)
    assert text_of(await drain(await backend.generate(chat_call()))) == "ok"
    assert status(backend) == "closed, 0 failures"
    await fail(backend, 2)
    assert status(backend) == "closed, 2 failures"


async def test_what_says_nothing_against_the_backend_does_not_count() -> None:
    backend = guarded(FakeClock(), WRONG, BUSY, WRONG, BUSY, WRONG, BUSY, [{"hang": True}])
    for kind in (InvalidRequest, Overloaded) * 3:
        with pytest.raises(kind):
            await backend.generate(chat_call())
    for _ in range(4):
        stream = await backend.generate(chat_call())
        await stream.aclose()
    assert status(backend) == "closed, 0 failures"


async def test_one_probe_decides() -> None:
    clock = FakeClock()
    backend = guarded(clock, REFUSED, REFUSED, REFUSED, REFUSED, HANGING)
    await fail(backend, 3)
    clock.now_s += 5
    assert status(backend) == "half-open, 3 failures"
    assert await backend.ready()
    await fail(backend, 1)
    assert status(backend) == "open, 4 failures"
    clock.now_s += 5
    probe = await backend.generate(chat_call("probe"))
    with pytest.raises(Unavailable) as refused:
        await backend.generate(chat_call("second"))
    assert refused.value.retry_after_s == 1
    assert text_of(await probe.receive()) == "a"
    assert status(backend) == "closed, 0 failures"
    await probe.aclose()


async def test_a_probe_whose_client_leaves_makes_room_for_the_next() -> None:
    clock = FakeClock()
    backend = guarded(clock, REFUSED, REFUSED, REFUSED, [{"hang": True}], GOOD)
    await fail(backend, 3)
    clock.now_s += 5
    await (await backend.generate(chat_call("probe"))).aclose()
    assert status(backend) == "half-open, 3 failures"
    assert text_of(await drain(await backend.generate(chat_call("next")))) == "ok"
    assert status(backend) == "closed, 0 failures"


async def test_late_failures_do_not_prolong_the_pause() -> None:
    """Streams that ran when the breaker opened may still break afterwards."""
    clock = FakeClock()
    backend = guarded(clock, BROKEN, REFUSED)
    running = await backend.generate(chat_call("running"))
    await fail(backend, 3)
    clock.now_s += 4
    await drain(running)
    clock.now_s += 1
    assert status(backend) == "half-open, 4 failures"


async def test_embeddings_count_too() -> None:
    class Broken(ScriptedBackend):
        async def embed(self, body: dict[str, Any]) -> dict[str, Any]:
            if body["input"] == "bad":
                raise UpstreamFailed("no")
            return await super().embed(body)

    breaker = Breaker(failures_to_open=2, clock=FakeClock())
    backend = GuardedBackend(Broken("large", {"steps": [], "embedding": {"data": []}}), breaker)
    for expected in ("1", "2"):
        with pytest.raises(UpstreamFailed):
            await backend.embed({"input": "bad"})
        assert f"{expected} failures" in repr(backend)
    with pytest.raises(Unavailable):
        await backend.embed({"input": "good"})
    breaker.succeeded()
    assert await backend.embed({"input": "good"}) == {"data": []}
    await backend.aclose()
    assert not await backend.ready()


async def test_a_probe_that_is_cancelled_before_it_started_makes_room() -> None:
    clock = FakeClock()
    slow: Steps = [{"delay_s": 60, "refuse": {"code": "upstream_failed"}}]
    backend = guarded(clock, REFUSED, REFUSED, REFUSED, slow, GOOD)
    await fail(backend, 3)
    clock.now_s += 5
    probe = asyncio.create_task(backend.generate(chat_call("probe")))
    await asyncio.sleep(0)
    probe.cancel()
    await asyncio.gather(probe, return_exceptions=True)
    assert text_of(await drain(await backend.generate(chat_call("next")))) == "ok"


def test_a_closed_breaker_has_nothing_to_wait_for() -> None:
    assert Breaker().retry_after_s == 0
