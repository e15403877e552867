"""Frames: every one survives the wire; what is not a frame is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol.errors import InvalidRequest, Overloaded
from engine.protocol.frames import (
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
    TokenLogprob,
    ToolDelta,
    Usage,
    Welcome,
    decode_from_engine,
    decode_to_engine,
    encode,
)
from engine.protocol.sampling import Sampling

TO_ENGINE: list[ToEngine] = [
    Hello(1, "secret"),
    Generate("r", messages=[{"role": "user", "content": "é\u2028"}], tools=[{"type": "function"}]),
    Generate("r", prompts=["text", [1, 2]], sampling=Sampling(logit_bias={5: -1.5}, stop=["x"])),
    Cancel("r"),
    Pause("r"),
    Resume("r"),
    Count("r", text=""),
    Ping(),
]
LOGPROB = TokenLogprob("x", 1, -1.0, [120], [TokenLogprob("y", 2, -2.0)])
FROM_ENGINE: list[FromEngine] = [
    Welcome(1, "m", "reference", 4096, 49152, 100_000),
    Accepted("r", 5),
    Started("r", 16, 1.5),
    Events([
        Event("r", text="x", logprobs=[LOGPROB]),
        Event("r", 1, "tool", tool=ToolDelta(0, "c", "f", "{}"), finish="tool_calls", stop=2),
        Event("r", usage=Usage(1, 2, 3, 4, 5), seed=2**63),
    ]),
    Failed("r", "overloaded", "Full.", "n", 2.5),
    Counted("r", 5),
    Stats(1, 2, 0.5),
    Pong(),
]  # fmt: skip


@pytest.mark.parametrize("frame", TO_ENGINE, ids=lambda frame: type(frame).__name__)
def test_frames_to_the_engine_survive_the_wire(frame: ToEngine) -> None:
    assert decode_to_engine(encode(frame)) == frame
    assert decode_to_engine(encode(frame).decode()) == frame


@pytest.mark.parametrize("frame", FROM_ENGINE, ids=lambda frame: type(frame).__name__)
def test_frames_from_the_engine_survive_the_wire(frame: FromEngine) -> None:
    assert decode_from_engine(encode(frame)) == frame
    assert json.loads(encode(frame))["type"] != ""


def test_what_is_at_its_default_stays_off_the_wire() -> None:
    assert encode(Events([Event("r", text="x", tokens=1)])) == (
        b'{"type":"events","events":[{"id":"r","text":"x","tokens":1}]}'
    )


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"5", b"{}", b'{"type":"bogus"}', b'{"type":"cancel"}', b"\xff",
        b'{"type":"cancel","id":5}', b'{"type":"generate","id":"r","n":"2"}',
        b'{"type":"generate","id":"r","sampling":{"temperature":"hot"}}',
        b'{"type":"generate","id":"r","prompts":[[1.5]]}', b'{"type":"pong"}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="Not a frame of protocol 2"):
        decode_to_engine(data)


@given(st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_no_bytes_raise_anything_but_a_refusal(data: bytes) -> None:
    for decode in (decode_to_engine, decode_from_engine):
        with pytest.raises(InvalidRequest):
            decode(data)


def test_an_error_becomes_a_frame() -> None:
    error = Overloaded("Full.", retry_after_s=2.5)
    assert Failed.of("r", error) == Failed("r", "overloaded", "Full.", None, 2.5)
