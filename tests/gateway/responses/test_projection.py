"""Internal events as the event stream of the Responses API: numbers, ends, opens and closes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol.errors import (
    ContextLengthExceeded,
    FewerError,
    RateLimited,
    Unavailable,
)
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
from gateway.responses.projection import ResponseProjection

USAGE = Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=1, reasoning_tokens=1)
TERMINALS = {"response.completed", "response.incomplete", "response.failed"}
DELTAS = {
    "response.output_text": "text",
    "response.refusal": "refusal",
    "response.reasoning_text": "text",
    "response.function_call_arguments": "arguments",
}


def projection() -> ResponseProjection:
    described = {"id": "resp_1", "object": "response", "created_at": 7, "model": "m", "store": True}
    return ResponseProjection("1", described)


def events_of(data: bytes) -> list[dict[str, Any]]:
    """The events of a stream; checks framing, types and numbers on the way."""
    frames = data.decode().split("\n\n")
    assert frames.pop() == ""
    events = []
    for frame in frames:
        assert len(frame.splitlines()) == 2
        first, second = frame.split("\n")
        events.append(json.loads(second.removeprefix("data: ")))
        assert first == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def told(*events: StreamEvent, stored: bool = True) -> list[dict[str, Any]]:
    projected = projection()
    data = projected.opening() + projected.joined(events)
    return events_of(data + projected.closing(stored=stored))


def text(text: str, **fields: Any) -> Event:
    return Event("r", text=text, tokens=1, **fields)


def call(index: int, arguments: str, id: str | None = None, name: str | None = None) -> Event:
    return Event("r", kind="tool", tool=ToolDelta(index, id, name, arguments))


def end(finish: Any = "stop") -> Event:
    return Event("r", finish=finish, usage=USAGE)


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_a_text_from_created_to_completed() -> None:
    events = told(Accepted("r", 3), Started("r", 1, 0.5), text("Hel"), text("lo"), end())
    assert types(events) == [
        "created", "in_progress", "output_item.added", "content_part.added",
        "output_text.delta", "output_text.delta", "output_text.done", "content_part.done",
        "output_item.done", "completed",
    ]  # fmt: skip
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []
    assert events[2]["item"] == {
        "id": "msg_1_0",
        "type": "message",
        "status": "in_progress",
        "role": "assistant",
        "content": [],
    }
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    place = {"item_id": "msg_1_0", "output_index": 0, "content_index": 0}
    assert events[3] == {
        "type": "response.content_part.added",
        "sequence_number": 3,
        "part": part,
        **place,
    }
    assert events[4] == {
        "type": "response.output_text.delta",
        "sequence_number": 4,
        "delta": "Hel",
        "logprobs": [],
        **place,
    }
    assert events[6]["text"] == "Hello"
    assert events[7]["part"] == part | {"text": "Hello"}
    response = events[-1]["response"]
    assert response["status"] == "completed"
    assert response["completed_at"] >= response["created_at"]
    assert response["output"] == [events[-2]["item"]]
    assert response["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 5,
    }


def test_what_was_thought_is_an_item_of_its_own() -> None:
    thought = Event("r", kind="reasoning", text="Hm. ", tokens=1)
    events = told(thought, text("A"), thought, text("B"), end())
    assert [item["type"] for item in events[-1]["response"]["output"]] == [
        "reasoning", "message", "reasoning", "message",
    ]  # fmt: skip
    first = events[-1]["response"]["output"][0]
    assert first["content"] == [{"type": "reasoning_text", "text": "Hm. "}]
    assert first["summary"] == []
    assert "reasoning_text.delta" in types(events)


def test_a_refusal_is_a_part_of_the_message() -> None:
    events = told(text("Well. "), Event("r", kind="refusal", text="No."), end())
    [message] = events[-1]["response"]["output"]
    assert [part["type"] for part in message["content"]] == ["output_text", "refusal"]
    assert message["content"][1] == {"type": "refusal", "refusal": "No."}
    deltas = [event for event in events if event["type"] == "response.refusal.delta"]
    assert [event["content_index"] for event in deltas] == [1]


def test_pieces_of_two_calls_may_come_in_turns() -> None:
    events = told(
        text("Let me see."),
        call(0, "", "call_a", "weather"),
        call(1, '{"b', "call_b", "time"),
        call(0, '{"a'),
        call(1, '":2}'),
        call(0, '":1}'),
        end("tool_calls"),
    )
    _, first, second = events[-1]["response"]["output"]
    assert (first["call_id"], first["name"], first["arguments"]) == ("call_a", "weather", '{"a":1}')
    assert (second["call_id"], second["arguments"]) == ("call_b", '{"b":2}')
    assert events[-1]["response"]["status"] == "completed"
    done = [e for e in events if e["type"] == "response.function_call_arguments.done"]
    assert [(event["name"], event["arguments"]) for event in done] == [
        ("weather", '{"a":1}'),
        ("time", '{"b":2}'),
    ]


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("length", "max_output_tokens"), ("content_filter", "content_filter")],
)
def test_what_was_cut_is_incomplete(finish: str, reason: str) -> None:
    events = told(text("Hel"), end(finish))
    response = events[-1]["response"]
    assert events[-1]["type"] == "response.incomplete"
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": reason}
    assert response["output"][0]["status"] == "incomplete"
    assert response["completed_at"] is None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unavailable("Gone."), "server_error"),
        (RateLimited("Slow down."), "rate_limit_exceeded"),
        (ContextLengthExceeded("Too long.", param="input"), "invalid_prompt"),
    ],
)
def test_a_failure_is_told_as_an_error_and_as_the_end(error: FewerError, code: str) -> None:
    *_, item, said, last = told(text("Hel"), Failed.of("r", error), text("late"))
    assert item["type"] == "response.output_item.done"
    assert said == {
        "type": "error",
        "sequence_number": said["sequence_number"],
        "code": error.code,
        "message": error.message,
        "param": error.param,
    }
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": code, "message": error.message}


def test_a_failure_from_elsewhere_is_told_once() -> None:
    projected = projection()
    data = projected.opening() + projected.joined([text("Hel")])
    data += projected.failure(Unavailable("The gateway is shutting down."))
    assert projected.failure(Unavailable("Again.")) == b""
    assert projected.closing(stored=False) == b""
    assert types(events_of(data))[-2:] == ["error", "failed"]


def test_a_cancelled_response_ends_as_incomplete() -> None:
    projected = projection()
    data = projected.opening() + projected.opening() + projected.joined([text("Hel")])
    data += projected.cancel() + projected.cancel() + projected.closing(stored=True)
    last = events_of(data)[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["status"] == "cancelled"
    assert last["response"]["incomplete_details"] is None
    assert last["response"]["output"][0]["content"][0]["text"] == "Hel"


def test_logprobs_go_with_the_text_that_they_are_of() -> None:
    def token(name: str) -> list[TokenLogprob]:
        return [TokenLogprob(name, 1, -0.5, [65], [TokenLogprob("B", 2, -1.5, [66])])]

    held = Event("r", tokens=1, logprobs=token("A"))
    events = told(held, text("AC", logprobs=token("C")), end())
    [delta] = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry["token"] for entry in delta["logprobs"]] == ["A", "C"]
    assert delta["logprobs"][0]["top_logprobs"] == [{"token": "B", "logprob": -1.5, "bytes": [66]}]
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == delta["logprobs"]


def test_only_the_first_choice_counts_and_nothing_follows_a_finish() -> None:
    events = told(text("a"), text("x", choice=1), Event("r", finish="length"), text("b"), end())
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "a"
    assert events[-1]["type"] == "response.incomplete"


def test_that_it_could_not_be_kept_is_told() -> None:
    assert told(text("a"), end(), stored=False)[-1]["response"]["store"] is False


_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_events = st.one_of(
    st.builds(
        lambda kind, text, choice: Event("r", choice, kind, text, 1),
        st.sampled_from(["text", "reasoning", "refusal"]),
        _texts,
        st.sampled_from([0, 0, 0, 1]),
    ),
    st.builds(call, st.integers(0, 2), _texts, st.none() | st.just("call_x"), st.just("f")),
    st.builds(lambda finish: Event("r", finish=finish), st.sampled_from(["stop", "length"])),
    st.just(Accepted("r", 3)),
)
_last = st.one_of(
    st.builds(end, st.sampled_from(["stop", "length", "tool_calls", "content_filter", None])),
    st.just(Failed("r", "unavailable", "Gone.")),
    st.just(None),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_events, max_size=20), _last, st.lists(_events, max_size=2))
def test_whatever_comes_there_is_one_end_and_nothing_stays_open(
    before: list[StreamEvent], last: StreamEvent | None, after: list[StreamEvent]
) -> None:
    projected = projection()
    data = projected.opening()
    for event in [*before, *([last] if last else [])]:
        data += projected.joined([event])
    if last is None:
        data += projected.cancel()
    data += projected.joined(after) + projected.closing(stored=True) + projected.joined(after)
    events = events_of(data)
    assert [event["type"] in TERMINALS for event in events].index(True) == len(events) - 1
    response = events[-1]["response"]
    _check_balance(events)
    _check_texts(events)
    done = [e for e in events if e["type"] == "response.output_item.done"]
    assert sorted(e["output_index"] for e in done) == list(range(len(response["output"])))
    assert all(response["output"][e["output_index"]] == e["item"] for e in done)


def _check_balance(events: list[dict[str, Any]]) -> None:
    """Items and parts are opened in order, closed once, and told of only while they are open."""
    open_items: dict[int, int | None] = {}
    opened = 0
    for event in events:
        name: str = event["type"].removeprefix("response.")
        place: Any = event.get("output_index")
        match name:
            case "output_item.added":
                assert place == opened
                opened += 1
                open_items[place] = None
            case "content_part.added":
                assert open_items[place] is None
                open_items[place] = event["content_index"]
            case "content_part.done":
                assert open_items[place] == event["content_index"]
                open_items[place] = None
            case "output_item.done":
                assert open_items.pop(place) is None
            case _ if place is not None:
                assert open_items[place] == event.get("content_index")
    assert open_items == {}


def _check_texts(events: list[dict[str, Any]]) -> None:
    """What is done is what the deltas add up to."""
    texts: dict[tuple[Any, ...], str] = {}
    for event in events:
        name, _, what = event["type"].rpartition(".")
        place = (name, event.get("item_id"), event.get("content_index"))
        if what == "delta":
            texts[place] = texts.get(place, "") + event["delta"]
        elif what == "done" and name in DELTAS:
            assert event[DELTAS[name]] == texts.pop(place, "")
    assert texts == {}
