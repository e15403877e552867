"""One model after another, for as long as the client cannot notice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.protocol.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    FewerError,
    InvalidRequest,
    Overloaded,
)
from engine.protocol.frames import Accepted, Event, Failed, StreamEvent
from gateway.attempts import Attempts
from gateway.backends.base import Backend, Call, Capabilities, Stream
from gateway.backends.scripted import ScriptedBackend
from gateway.config import ModelConfig
from gateway.errors import with_tried
from policies.request import Request

GOOD: dict[str, Any] = {"steps": [{"accepted": 3}, {"text": "good"}]}
FULL: dict[str, Any] = {"steps": [{"refuse": {"code": "overloaded", "message": "Full."}}]}
DEAD: dict[str, Any] = {
    "steps": [{"accepted": 3}, {"fail": {"code": "upstream_failed", "message": "Died."}}]
}
WRONG: dict[str, Any] = {"steps": [{"refuse": {"code": "invalid_value", "message": "Wrong."}}]}
SMALL: dict[str, Any] = {
    "steps": [{"refuse": {"code": "context_length_exceeded", "message": "Too long."}}]
}
HALF: dict[str, Any] = {
    "steps": [{"text": "half"}, {"fail": {"code": "unavailable", "message": "Gone."}}]
}
MUTE: dict[str, Any] = {"steps": [{"hang": True}]}
REQUEST = Request(surface="chat", model="chat")


def as_it_is(request: Request, model: str) -> Request:
    return request


class Tried:
    """Attempts over scripts, and what became of them."""

    def __init__(self, *scripts: dict[str, Any], first_token_timeout_s: float = 5.0) -> None:
        self.names = [f"m{number}" for number in range(len(scripts))]
        self.backends = {
            name: ScriptedBackend(name, script)
            for name, script in zip(self.names, scripts, strict=True)
        }
        model = ModelConfig(openai="http://x/v1", first_token_timeout_s=first_token_timeout_s)
        self.told: list[str] = []
        self.attempts = Attempts(
            Call("id", REQUEST),
            self.names,
            dict(self.backends),
            dict.fromkeys(self.names, model),
            as_it_is,
            self.told.append,
        )

    async def events(self) -> list[StreamEvent]:
        stream = await self.attempts.start()
        events: list[StreamEvent] = []
        while more := await stream.receive():
            events += more
        await stream.aclose()
        assert not any(backend.running for backend in self.backends.values())
        return events


def text_of(events: list[StreamEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Event))


@pytest.mark.parametrize("first", [FULL, DEAD])
async def test_a_fault_before_the_first_delta_moves_on(first: dict[str, Any]) -> None:
    tried = Tried(first, GOOD)
    events = await tried.events()
    assert text_of(events) == "good"
    assert sum(isinstance(event, Accepted) for event in events) == 1
    assert tried.told == ["m0", "m1"]


async def test_acceptance_is_told_before_the_first_delta_and_once() -> None:
    slow = {"steps": [{"accepted": 3}, {"delay_s": 0.01, "accepted": 3}, {"text": "good"}]}
    stream = await Tried(slow).attempts.start()
    assert await stream.receive() == [Accepted("id", 3)]
    assert text_of(await stream.receive()) == "good"


async def test_a_fallback_that_refuses_after_a_failed_stream() -> None:
    tried = Tried(DEAD, FULL)
    events = await tried.events()
    assert events[-1] == Failed("id", "upstream_failed", "Died. Tried: m0, m1.")


async def test_ids_are_never_used_twice() -> None:
    tried = Tried(DEAD, GOOD)
    await tried.events()
    ids = {backend.calls[0].id for backend in tried.backends.values()}
    assert len(ids) == 2


async def test_after_the_first_delta_nothing_is_sent_twice() -> None:
    """R21."""
    tried = Tried(HALF, GOOD)
    events = await tried.events()
    assert text_of(events) == "half"
    assert isinstance(events[-1], Failed)
    assert tried.told == ["m0"]


async def test_a_fault_of_the_request_does_not_move_on() -> None:
    tried = Tried(WRONG, GOOD)
    with pytest.raises(InvalidRequest, match=r"^Wrong\.$"):
        await tried.events()
    assert tried.told == ["m0"]


async def test_when_all_fail_the_first_error_is_told_with_all_who_were_tried() -> None:
    tried = Tried(FULL, DEAD)
    events = await tried.events()
    assert events[-1] == Failed("id", "overloaded", "Full. Tried: m0, m1.")
    with pytest.raises(Overloaded, match=r"Full\. Tried: m0, m1\."):
        await Tried(FULL, FULL).events()


async def test_a_fallback_that_is_too_small_does_not_hide_the_cause() -> None:
    """B23."""
    with pytest.raises(Overloaded, match=r"^Full\. Tried: m0, m1\.$"):
        await Tried(FULL, SMALL).events()
    assert text_of(await Tried(FULL, SMALL, GOOD).events()) == "good"
    with pytest.raises(ContextLengthExceeded):
        await Tried(SMALL, GOOD).events()


async def test_no_first_token_in_time_moves_on() -> None:
    tried = Tried(MUTE, GOOD, first_token_timeout_s=0.05)
    assert text_of(await tried.events()) == "good"
    assert list(tried.backends["m0"].cancelled) == ["id"]


async def test_no_first_token_from_anybody() -> None:
    events = await Tried(MUTE, first_token_timeout_s=0.05).events()
    assert events == [
        Failed("id", "deadline_exceeded", "The model m0 gave no first token in time.")
    ]


class Stuck(Backend):
    """Never accepts."""

    name = "m0"
    capabilities = Capabilities()

    def __init__(self) -> None:
        self.cancelled = False

    async def generate(self, call: Call) -> Stream:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled = True
        raise AssertionError

    async def ready(self) -> bool:
        return True

    async def aclose(self) -> None:
        return


class Empty(Stream):
    """Ends without a terminal."""

    async def receive(self) -> list[StreamEvent]:
        return []

    async def aclose(self) -> None:
        return


class Broken(Stuck):
    async def generate(self, call: Call) -> Stream:
        return Empty()


async def test_a_backend_that_never_accepts_is_given_up() -> None:
    stuck = Stuck()
    model = ModelConfig(openai="http://x/v1", first_token_timeout_s=0.05)
    attempts = Attempts(
        Call("id", REQUEST), ["m0"], {"m0": stuck}, {"m0": model}, as_it_is, lambda name: None
    )
    with pytest.raises(DeadlineExceeded):
        await attempts.start()
    assert stuck.cancelled


async def test_a_stream_without_an_end_is_a_failure() -> None:
    model = ModelConfig(openai="http://x/v1")
    attempts = Attempts(
        Call("id", REQUEST), ["m0"], {"m0": Broken()}, {"m0": model}, as_it_is, lambda name: None
    )
    stream = await attempts.start()
    (failed,) = await stream.receive()
    assert isinstance(failed, Failed)
    assert failed.code == "upstream_failed"
    assert await stream.receive() == []


def test_errors_keep_what_they_know() -> None:
    error: FewerError = Overloaded("Full.", retry_after_s=3.0)
    told = with_tried(error, ["a", "b"])
    assert (type(told), told.retry_after_s) == (Overloaded, 3.0)
    assert with_tried(error, ["a"]) is error
