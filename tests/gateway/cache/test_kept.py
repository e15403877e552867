"""What is kept of an answer, and what is not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol.frames import (
    Accepted,
    Event,
    Failed,
    Started,
    StreamEvent,
    TokenLogprob,
    ToolDelta,
    Usage,
)
from gateway.cache.kept import (
    CUT,
    EVENTS_PER_RECEIVE,
    WHOLE,
    Kept,
    KeptStream,
    decode,
    encode,
    lasting,
)

KEY = bytes(32)
END = Event("id", usage=Usage(3, 2, cached_tokens=1, reasoning_tokens=1))


def answer(*finishes: Any) -> list[StreamEvent]:
    events: list[StreamEvent] = [Accepted("id", 3), Started("id", 1, 0.5)]
    for choice, finish in enumerate(finishes):
        events += [Event("id", choice, text="a", tokens=1), Event("id", choice, finish=finish)]
    return [*events, END]


@pytest.mark.parametrize(
    ("events", "choices", "kept"),
    [
        (answer("stop"), 1, True),
        (answer("tool_calls"), 1, True),
        (answer("stop", "stop"), 2, True),
        (answer("stop"), 2, False),
        (answer("stop", None), 2, False),
        (answer("content_filter"), 1, False),
        (answer(None), 1, False),
        (answer("stop")[:-1], 1, False),
        ([*answer("stop")[:-1], Failed("id", "unavailable", "")], 1, False),
        ([], 1, False),
        ([END], 1, False),
    ],
)
def test_only_what_came_to_its_end_is_kept(
    events: list[StreamEvent], choices: int, kept: bool
) -> None:
    assert (lasting(events, choices, CUT) is not None) == kept


finishes = st.lists(st.sampled_from(["stop", "tool_calls", "length"]), min_size=1, max_size=4)


@given(finishes, st.data())
@settings(max_examples=60, deadline=None)
def test_no_part_of_an_answer_is_kept(ends: list[Any], data: st.DataObject) -> None:
    """What must never happen: keeping a truncated stream, wherever it was cut or lost a piece."""
    whole = answer(*ends)
    assert lasting(whole, len(ends), CUT) is not None
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert lasting(whole[:cut], len(ends), CUT) is None
    last = data.draw(st.integers(0, len(ends) - 1))
    missing = [e for e in whole if not (isinstance(e, Event) and e.choice == last and e.finish)]
    assert lasting(missing, len(ends), CUT) is None
    failed = [*whole[:cut], Failed("id", "unavailable", "")]
    assert lasting(failed, len(ends), CUT) is None


def test_what_was_cut_at_its_limit_is_kept_where_it_is_wanted() -> None:
    assert lasting(answer("length"), 1, CUT) is not None
    assert lasting(answer("stop", "length"), 2, WHOLE) is None


def test_everything_comes_back_as_it_was() -> None:
    logprobs = [TokenLogprob("a", 5, -0.1, [97], [TokenLogprob("b", 6, -1.25)])]
    said = [
        Event("id", 1, "reasoning", "hm", 1, seed=-5),
        Event("id", text="a\u2028😀\x00", tokens=2, logprobs=logprobs),
        Event("id", kind="tool", tool=ToolDelta(0, "call_1", "f", '{"a": 1}')),
        Event("id", 1, kind="refusal", text="no", finish="stop", stop=7),
        Event("id", finish="stop", stop="END"),
        END,
    ]
    events = lasting(said, 2, CUT)
    assert events is not None
    kept = Kept(KEY, 12.5, "one", events)
    assert decode(encode(kept), KEY) == kept
    assert kept.usage == END.usage


def test_what_is_not_under_its_own_key_is_not_there() -> None:
    """B29: a store that mixes up its replies is found out."""
    data = encode(Kept(KEY, 1.0, "one", [END]))
    assert decode(data, b"1" * 32) is None
    assert decode(b"", KEY) is None
    assert decode(data[:-1], KEY) is None
    assert decode(b"\xc1", KEY) is None
    assert decode(encode(Kept(KEY, 1.0, "one", [])), KEY) is None
    assert decode(encode(Kept(KEY, 1.0, "one", [Event("", text="a")])), KEY) is None


async def test_it_goes_out_in_slices_under_the_readers_id() -> None:
    events = [Event("", text=str(n)) for n in range(100)] + [END]
    stream = KeptStream("mine", Kept(KEY, 1.0, "one", events))
    pieces = []
    while piece := await stream.receive():
        pieces.append(piece)
    assert max(map(len, pieces)) == EVENTS_PER_RECEIVE
    assert {event.id for piece in pieces for event in piece} == {"mine"}
    assert sum(map(len, pieces)) == 101
    left = KeptStream("mine", Kept(KEY, 1.0, "one", events))
    await left.receive()
    await left.aclose()
    assert await left.receive() == []
