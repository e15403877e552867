"""Chunks of real and of careless upstreams as our events: what counts as complete, and what not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.protocol.frames import Event, StreamEvent, TokenLogprob, Usage
from gateway.backends.openai_chunks import ChunkReader
from gateway.backends.openai_shapes import MOST_TOKENS, UNKNOWN_LOGPROB
from gateway.backends.sse import ServerSentEvent, SseParser
from tests.fakes.calls import failure, finishes, text_of
from tests.fakes.upstream import chat_chunk, envelope, usage_chunk


def read(*payloads: Any, choices: int = 1) -> list[StreamEvent]:
    """The events of these payloads, the end of the stream included."""
    reader = ChunkReader("large", "r1", choices)
    sent = [ServerSentEvent(p if isinstance(p, str) else json.dumps(p)) for p in payloads]
    events = reader.feed(sent)
    return events if reader.ended else events + reader.finish([])


def tools_of(events: list[StreamEvent]) -> dict[str, dict[str, str | None]]:
    calls: dict[str, dict[str, str | None]] = {}
    for event in events:
        if isinstance(event, Event) and event.tool is not None:
            tool = event.tool
            call = calls.setdefault(str(tool.index), {"id": None, "name": None, "arguments": ""})
            call["id"] = call["id"] or tool.id
            call["name"] = call["name"] or tool.name
            call["arguments"] = (call["arguments"] or "") + tool.arguments
    return calls


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100_000])
def test_recorded_streams_assemble_to_their_results(
    shared_data: Callable[[str], Path], size: int
) -> None:
    folder = shared_data("openai_recorded_streams")
    records = json.loads((folder / "index.json").read_bytes())
    assert len(records) == 6
    for record in records:
        data = (folder / record["file"]).read_bytes()
        parser, reader = SseParser(), ChunkReader("large", "r1", 1)
        events: list[StreamEvent] = []
        for start in range(0, len(data), size):
            events += reader.feed(parser.feed(data[start : start + size]))
        assert reader.ended
        expected = record["assembled"]["0"]
        assert text_of(events) == expected["content"]
        assert text_of(events, kind="refusal") == expected["refusal"]
        assert tools_of(events) == expected["tool_calls"]
        assert finishes(events) == {0: expected["finish_reason"]}
        last = events[-1]
        assert isinstance(last, Event)
        assert last.usage is not None
        assert last.usage.prompt_tokens > 0


def test_logprobs_of_a_recorded_stream(shared_data: Callable[[str], Path]) -> None:
    data = (shared_data("openai_recorded_streams") / "83b060bae42e.sse").read_bytes()
    events = ChunkReader("large", "r1", 1).feed(SseParser().feed(data))
    tokens = [t for e in events if isinstance(e, Event) for t in e.logprobs or ()]
    assert [token.token for token in tokens] == ["Foo", "!"]
    assert tokens[0] == TokenLogprob("Foo", -1, -0.0025094282, [70, 111, 111])


def test_chunks_without_choices_do_no_harm() -> None:
    """B03: one comes first without usage, one last with it."""
    events = read(
        envelope([]),
        envelope([]) | {"choices": None},
        *map(chat_chunk, ["a", "b", "c"]),
        chat_chunk(finish="stop"),
        usage_chunk(9, 3),
        "[DONE]",
    )
    assert text_of(events) == "abc"
    assert events[-1] == Event("r1", usage=Usage(prompt_tokens=9, completion_tokens=3))
    assert sum(isinstance(e, Event) and e.usage is not None for e in events) == 1


def test_the_last_usage_counts_and_details_are_read() -> None:
    details = {
        "prompt_tokens": 5,
        "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {
            "reasoning_tokens": 2,
            "accepted_prediction_tokens": 6,
            "rejected_prediction_tokens": 1,
        },
    }
    events = read(
        chat_chunk("a") | {"usage": {"prompt_tokens": 5, "completion_tokens": 1}},
        chat_chunk(finish="stop") | {"usage": details},
        "[DONE]",
    )
    last = events[-1]
    assert isinstance(last, Event)
    assert last.usage == Usage(5, 7, 4, 2, 6, 1)


@pytest.mark.parametrize(("told", "counted"), [(-5, 0), (10**30, MOST_TOKENS), (7, 7)])
def test_what_an_upstream_tells_is_bounded(told: int, counted: int) -> None:
    details = {"cached_tokens": told}
    usage = {"prompt_tokens": told, "completion_tokens": told, "prompt_tokens_details": details}
    last = read(chat_chunk("a"), chat_chunk(finish="stop"), envelope([], usage=usage), "[DONE]")[-1]
    assert last == Event("r1", usage=Usage(counted, counted, counted))


def test_without_usage_the_deltas_are_counted_and_the_prompt_is_estimated() -> None:
    payloads = chat_chunk("a"), chat_chunk("b"), chat_chunk(finish="stop"), "[DONE]"
    assert read(*payloads)[-1] == Event("r1", usage=Usage(0, 2, estimated=True))
    reader = ChunkReader("large", "r1", 1, lambda: 7)
    events = [ServerSentEvent(p if isinstance(p, str) else json.dumps(p)) for p in payloads]
    assert reader.feed(events)[-1] == Event("r1", usage=Usage(7, 2, estimated=True))


@pytest.mark.parametrize(
    ("payloads", "complaint"),
    [
        ([chat_chunk("a")], "broke off"),
        ([chat_chunk("a"), chat_chunk(finish="stop")], "broke off"),
        ([chat_chunk("a"), chat_chunk(finish="stop"), usage_chunk()], "broke off"),
        ([chat_chunk("a"), "[DONE]"], "without a finish_reason"),
        (["[DONE]"], "without a finish_reason"),
        ([chat_chunk("a"), "{not json"], "not OpenAI's form"),
        ([chat_chunk("a"), "[1]"], "not OpenAI's form"),
        ([chat_chunk("a"), {"choices": [{"index": 0, "delta": {"content": 5}}]}], "not OpenAI"),
        ([chat_chunk("a", index=1), "[DONE]"], "choice 1 of 1"),
        ([chat_chunk("a", index=-1), "[DONE]"], "choice -1 of 1"),
        ([chat_chunk(finish="gave_up"), "[DONE]"], "'gave_up'"),
        ([chat_chunk("a"), {"hello": "world"}], "failed while it answered"),
        ([chat_chunk("a"), {"error": {"message": "boom", "type": "x"}}, "[DONE]"], "while it"),
        ([chat_chunk("a"), {"error": "boom"}, "[DONE]"], "while it"),
    ],
)
def test_a_stream_that_is_not_whole_never_ends_cleanly(payloads: list[Any], complaint: str) -> None:
    failed = failure(read(*payloads))
    assert failed.code == "upstream_failed"
    assert complaint in failed.message


def test_each_choice_needs_its_finish() -> None:
    both = [chat_chunk("a"), chat_chunk("b", index=1), chat_chunk(finish="stop")]
    assert "finish_reason" in failure(read(*both, "[DONE]", choices=2)).message
    events = read(*both, chat_chunk(index=1, finish="length"), "[DONE]", choices=2)
    assert finishes(events) == {0: "stop", 1: "length"}
    assert text_of(events, 1) == "b"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"code": 400, "message": "bad", "param": "stop"}, "invalid_value"),
        ({"code": "context_length_exceeded", "message": "long"}, "context_length_exceeded"),
        ({"type": "invalid_request_error", "message": "bad"}, "invalid_value"),
        ({"code": 503, "message": "busy"}, "overloaded"),
        ({"code": "rate_limit_exceeded", "message": "busy"}, "overloaded"),
    ],
)
def test_errors_in_the_stream_keep_their_meaning(error: dict[str, Any], code: str) -> None:
    assert failure(read({"error": error})).code == code


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("stop", "stop"),
        ("eos_token", "stop"),
        ("length", "length"),
        ("tool_calls", "tool_calls"),
        ("content_filter", "content_filter"),
    ],
)
def test_finish_reasons(theirs: str, ours: str) -> None:
    assert finishes(read(chat_chunk(finish=theirs), "[DONE]")) == {0: ours}


def test_an_empty_finish_is_none() -> None:
    """As servers write it that know no null."""
    events = read(chat_chunk("a", finish=""), chat_chunk("b", finish="length"), "[DONE]")
    assert (text_of(events), finishes(events)) == ("ab", {0: "length"})


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_under_both_of_its_names(field: str) -> None:
    events = read(
        envelope([{"index": 0, "delta": {field: "hmm"}}]),
        chat_chunk("ok"),
        chat_chunk(finish="stop"),
        "[DONE]",
    )
    assert text_of(events, kind="reasoning") == "hmm"
    assert text_of(events) == "ok"


def test_a_tool_call_is_named_once_and_always_has_an_id() -> None:
    def piece(**call: Any) -> dict[str, Any]:
        return chat_chunk(tool_calls=[call])

    events = read(
        piece(index=0, id="c1", function={"name": "f", "arguments": ""}),
        piece(index=0, id="c1", function={"name": "f", "arguments": "{}"}),
        piece(index=1, function={"name": "g", "arguments": "[]"}),
        chat_chunk(finish="tool_calls"),
        "[DONE]",
    )
    tools = [e.tool for e in events if isinstance(e, Event) and e.tool is not None]
    assert [(t.id, t.name, t.arguments) for t in tools[:2]] == [
        ("c1", "f", ""),
        (None, None, "{}"),
    ]
    assert tools[2].id is not None
    assert tools[2].id.startswith("call_")


def test_completions_logprobs_and_their_gaps() -> None:
    logprobs = {
        "tokens": ["On", "ce"],
        "token_logprobs": [None, -0.5],
        "top_logprobs": [None, {"ce": -0.5, "ly": -2.0}],
    }
    choice = {"index": 0, "text": "Once", "logprobs": logprobs, "finish_reason": "length"}
    events = read(envelope([choice]), "[DONE]")
    assert text_of(events) == "Once"
    first = events[0]
    assert isinstance(first, Event)
    assert first.tokens == 2
    assert first.logprobs is not None
    assert [t.logprob for t in first.logprobs] == [UNKNOWN_LOGPROB, -0.5]
    assert [t.token for t in first.logprobs[1].top] == ["ce", "ly"]


def test_nothing_follows_the_terminal_or_a_finish() -> None:
    late = chat_chunk("b", finish="stop")
    events = read(chat_chunk("a"), chat_chunk(finish="stop"), late, "[DONE]", chat_chunk("c"))
    assert text_of(events) == "a"
    assert len(finishes(events)) == 1
    assert isinstance(events[-1], Event)


def test_done_counts_without_its_blank_line_and_nothing_else_does() -> None:
    reader = ChunkReader("large", "r1", 1)
    reader.feed([ServerSentEvent(json.dumps(chat_chunk("a", finish="stop")))])
    (last,) = reader.finish([ServerSentEvent("[DONE]")])
    assert isinstance(last, Event)
    reader = ChunkReader("large", "r1", 1)
    (failed,) = reader.finish([ServerSentEvent(json.dumps(chat_chunk("a", finish="stop")))])
    assert not isinstance(failed, Event)


def test_logprobs_without_text_are_kept() -> None:
    logprobs = {"content": [{"token": "", "logprob": -0.5, "bytes": None, "top_logprobs": []}]}
    events = read(
        chat_chunk("", logprobs=logprobs), chat_chunk("a"), chat_chunk(finish="stop"), "[DONE]"
    )
    first = events[0]
    assert isinstance(first, Event)
    assert first.logprobs == [TokenLogprob("", -1, -0.5)]


@pytest.mark.parametrize(("said", "landed"), [(True, True), ("yes", False), (None, False)])
def test_where_an_engine_of_ours_behind_it_landed_is_kept(said: Any, landed: bool) -> None:
    last = {"index": 0, "delta": {}, "finish_reason": "length", "landed": said}
    events = read(chat_chunk("a."), envelope([last]), "[DONE]")
    assert events[1] == Event("r1", finish="length", landed=landed)


def test_the_drawn_seed_and_the_stop_that_matched_are_kept() -> None:
    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "seed": 7}
    last = {"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": "\n"}
    events = read(envelope([first]), chat_chunk("a"), envelope([last]), "[DONE]")
    assert events[:-1] == [
        Event("r1", seed=7),
        Event("r1", text="a", tokens=1),
        Event("r1", finish="stop", stop="\n"),
    ]


def test_calls_without_a_number_are_told_apart_by_their_ids() -> None:
    def piece(id: str, arguments: str) -> dict[str, Any]:
        return chat_chunk(tool_calls=[{"id": id, "function": {"name": id, "arguments": arguments}}])

    told = [piece("c1", "{"), piece("c1", "}"), piece("c2", "[]"), piece("c1", " ")]
    assert tools_of(read(*told, chat_chunk(finish="tool_calls"), "[DONE]")) == {
        "0": {"id": "c1", "name": "c1", "arguments": "{} "},
        "1": {"id": "c2", "name": "c2", "arguments": "[]"},
    }
