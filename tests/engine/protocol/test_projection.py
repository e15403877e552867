"""Events in, OpenAI chunks and completions out: shapes, order, and one line for each event."""

from __future__ import annotations

import json
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
from engine.protocol.projection import (
    ChatProjection,
    Collected,
    CompletionProjection,
    Projection,
)

USAGE = Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=1, reasoning_tokens=1)
USAGE_OBJECT = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "total_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 1},
    "completion_tokens_details": {"reasoning_tokens": 1},
}


def chat(**options: Any) -> ChatProjection:
    return ChatProjection("chatcmpl-1", "m", 7, **options)


def completion(**options: Any) -> CompletionProjection:
    return CompletionProjection("cmpl-1", "m", 7, **options)


def sent(projection: Projection, *events: StreamEvent) -> list[Any]:
    """The JSON of every chunk, `[DONE]` as it is; checks the framing on the way."""
    data = b"".join(b"".join(projection.chunks(event)) for event in events)
    payloads = []
    for piece in data.decode().split("\n\n")[:-1]:
        assert piece.startswith("data: ")
        assert len(piece.splitlines()) == 1
        text = piece.removeprefix("data: ")
        payloads.append(text if text == "[DONE]" else json.loads(text))
    return payloads


def text(text: str, choice: int = 0, **fields: Any) -> Event:
    return Event("r", choice=choice, text=text, tokens=1, **fields)


def end(finish: Any = "stop", choice: int = 0, **fields: Any) -> Event:
    return Event("r", choice=choice, finish=finish, **fields)


def test_a_chat_stream_from_role_to_done() -> None:
    chunks = sent(
        chat(), Accepted("r", 3), Started("r", 1, 0.5), text("Hel"), text("lo"), end(usage=USAGE)
    )
    assert chunks[0] == {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 7,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "delta": {"role": "assistant", "content": "", "refusal": None},
                "logprobs": None,
                "finish_reason": None,
            }
        ],
    }
    assert [chunk["choices"][0]["delta"] for chunk in chunks[1:4]] == [
        {"content": "Hel"},
        {"content": "lo"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:4]] == [None] * 3 + ["stop"]
    assert chunks[4:] == ["[DONE]"]
    assert all("usage" not in chunk for chunk in chunks[:4])


def test_text_and_finish_of_one_event_are_two_chunks() -> None:
    chunks = sent(chat(), text("x", finish="length", usage=USAGE))
    assert [chunk["choices"][0]["delta"] for chunk in chunks[1:3]] == [{"content": "x"}, {}]
    assert chunks[2]["choices"][0]["finish_reason"] == "length"


def test_usage_tells_of_a_prediction_that_was_there() -> None:
    usage = Usage(3, 9, accepted_prediction_tokens=5, rejected_prediction_tokens=2)
    *_, chunk, _ = sent(chat(include_usage=True), text("x"), end(usage=usage))
    assert chunk["usage"]["completion_tokens_details"] == {
        "reasoning_tokens": 0,
        "accepted_prediction_tokens": 5,
        "rejected_prediction_tokens": 2,
    }


def test_usage_comes_last_and_only_if_asked_for() -> None:
    for projection in (chat(include_usage=True), completion(include_usage=True)):
        *before, usage, done = sent(projection, text("x"), end(usage=USAGE))
        assert done == "[DONE]"
        assert usage["choices"] == []
        assert usage["usage"] == USAGE_OBJECT
        assert all(chunk["usage"] is None for chunk in before)


def test_each_choice_has_its_role_and_its_finish_once() -> None:
    events = [text("a", 1), text("b"), text("c", 1), end("length", 1), end(usage=USAGE)]
    chunks = sent(chat(), *events, text("late"), end(usage=USAGE))
    assert chunks[-1] == "[DONE]"
    assert chunks.count("[DONE]") == 1
    seen = [chunk["choices"][0] for chunk in chunks[:-1]]
    assert [(c["index"], c["finish_reason"]) for c in seen] == [
        (1, None), (1, None), (0, None), (0, None), (1, None), (1, "length"), (0, "stop"),
    ]  # fmt: skip
    assert [c["index"] for c in seen if "role" in c["delta"]] == [1, 0]


def test_nothing_follows_a_choice_s_finish() -> None:
    chunks = sent(chat(), text("a"), end(), text("b"), end("length"), Event("r", usage=USAGE))
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None, None, "stop"]


def test_no_empty_deltas_while_text_is_held_back() -> None:
    held = [Event("r", seed=5), Event("r", tokens=1), Event("r", tokens=1)]
    for projection in (chat(), completion()):
        assert sent(projection, *held) == []
    chunks = sent(chat(), *held, text("x", stop=None), end(stop="\n", usage=USAGE))
    assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks[:-1]] == ["", "x", None]
    assert chunks[0]["choices"][0]["seed"] == 5
    assert chunks[2]["choices"][0]["stop_reason"] == "\n"


def test_where_a_choice_has_landed_its_finish_says_so() -> None:
    landed = end("length", landed=True, usage=USAGE)
    for projection in (chat(), completion()):
        *before, last, done = sent(projection, text("x"), landed)
        assert (last["choices"][0]["finish_reason"], last["choices"][0]["landed"]) == (
            "length",
            True,
        )
        assert not any("landed" in chunk["choices"][0] for chunk in before)
        assert done == "[DONE]"
    whole = Collected("chat", "chatcmpl-1", "m", 7)
    for event in (text("x"), end("length", 1), landed):
        whole.add(event)
    first, second = whole.completion()["choices"]
    assert first["landed"] is True
    assert "landed" not in second


def test_an_answer_of_no_text_still_has_a_role_and_a_finish() -> None:
    chunks = sent(chat(), end(stop=2, usage=USAGE))
    assert [chunk["choices"][0]["delta"] for chunk in chunks[:2]] == [
        {"role": "assistant", "content": "", "refusal": None},
        {},
    ]
    assert chunks[1]["choices"][0]["stop_reason"] == 2


def test_reasoning_has_a_field_of_its_own() -> None:
    thought = Event("r", kind="reasoning", text="hm")
    chunks = sent(chat(), thought, text("x"), end(usage=USAGE))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[1:3]]
    assert deltas == [{"reasoning_content": "hm"}, {"content": "x"}]


NAMED = {"name": "look", "arguments": ""}


def test_tool_deltas_name_the_call_once() -> None:
    pieces = [
        ToolDelta(0, "c1", "look", ""),
        ToolDelta(0, arguments='{"a'),
        ToolDelta(0, arguments='":1}'),
    ]
    events = [Event("r", kind="tool", tool=piece) for piece in pieces]
    chunks = sent(chat(), *events, end("tool_calls", usage=USAGE))
    assert [chunk["choices"][0]["delta"]["tool_calls"] for chunk in chunks[1:4]] == [
        [{"index": 0, "id": "c1", "type": "function", "function": NAMED}],
        [{"index": 0, "function": {"arguments": '{"a'}}],
        [{"index": 0, "function": {"arguments": '":1}'}}],
    ]
    assert chunks[4]["choices"][0]["finish_reason"] == "tool_calls"


LOGPROB = TokenLogprob("é", 9, -0.25, [195, 169], [TokenLogprob("e", 5, float("-inf"), [101])])


def test_chat_logprobs() -> None:
    chunks = sent(chat(), text("é", logprobs=[LOGPROB]), text("x"), end(usage=USAGE))
    assert chunks[1]["choices"][0]["logprobs"] == {
        "content": [
            {
                "token": "é",
                "logprob": -0.25,
                "bytes": [195, 169],
                "top_logprobs": [{"token": "e", "logprob": -9999.0, "bytes": [101]}],
            }
        ],
        "refusal": None,
    }
    assert chunks[2]["choices"][0]["logprobs"] is None


def test_logprobs_of_held_back_text_come_with_the_text_or_the_finish() -> None:
    held = Event("r", tokens=1, logprobs=[LOGPROB])
    chunks = sent(chat(), held, held, text("x", logprobs=[LOGPROB]), held, end(usage=USAGE))
    counts = [len((c["choices"][0]["logprobs"] or {"content": []})["content"]) for c in chunks[:-1]]
    assert counts == [0, 3, 1]


def test_completion_logprobs_know_where_tokens_start() -> None:
    events = [text("echo"), text("ab", logprobs=[LOGPROB, LOGPROB]), text("c", logprobs=[LOGPROB])]
    chunks = sent(completion(), *events, end(usage=USAGE))
    assert chunks[0]["choices"][0]["logprobs"] is None
    assert chunks[1]["choices"][0]["logprobs"] == {
        "tokens": ["é", "é"],
        "token_logprobs": [-0.25, -0.25],
        "top_logprobs": [{"e": -9999.0, "é": -0.25}] * 2,
        "text_offset": [4, 5],
    }
    assert chunks[2]["choices"][0]["logprobs"]["text_offset"] == [6]


@pytest.mark.parametrize("logprob", [float("-inf"), float("nan"), -1e30])
def test_logprobs_are_numbers_json_has(logprob: float) -> None:
    """R29."""
    bare = TokenLogprob("x", 1, logprob)
    chunks = sent(chat(), text("x", logprobs=[bare]))
    assert chunks[1]["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0


def test_a_completion_stream() -> None:
    chunks = sent(completion(), text("Hi", seed=5), text("!"), end(stop="x", usage=USAGE))
    assert chunks == [
        {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 7,
            "model": "m",
            "choices": [choice],
        }
        for choice in (
            {"index": 0, "text": "Hi", "logprobs": None, "finish_reason": None, "seed": 5},
            {"index": 0, "text": "!", "logprobs": None, "finish_reason": None},
            {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop", "stop_reason": "x"},
        )
    ] + ["[DONE]"]


@pytest.mark.parametrize("projection", [chat(), completion()])
def test_a_failure_is_an_error_in_band_then_done(projection: Projection) -> None:
    failed = Failed("r", "overloaded", "Too much.", retry_after_s=2.0)
    chunks = sent(projection, text("x"), failed, text("late"), end(usage=USAGE))
    error = {"message": "Too much.", "type": "server_error", "param": None, "code": "overloaded"}
    assert chunks[-2:] == [{"error": error}, "[DONE]"]
    assert projection.ended


def test_every_event_is_one_line_to_clients_that_split_on_unicode_line_ends() -> None:
    """R01."""
    awkward = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\r\n\x00\ud7ff\U0001f9f5"
    for projection in (chat(), completion()):
        chunks = sent(projection, text(awkward), end(usage=USAGE))
        found = [c["choices"][0] for c in chunks[:-1]]
        joined = "".join(c.get("text") or c.get("delta", {}).get("content", "") for c in found)
        assert joined == awkward


_texts = st.lists(st.text(max_size=6), max_size=6)


@given(st.lists(_texts, min_size=1, max_size=3), st.booleans())
@settings(max_examples=100, deadline=None)
def test_streamed_and_collected_texts_agree(choices: list[list[str]], usage: bool) -> None:
    events = [
        text(pieces[step], choice)
        for step in range(6)
        for choice, pieces in enumerate(choices)
        if step < len(pieces)
    ]
    events += [end("length", choice) for choice in range(len(choices))]
    events.append(Event("r", usage=USAGE))
    collected = Collected("chat", "chatcmpl-1", "m", 7)
    for event in events:
        collected.add(event)
    assert collected.ended
    streamed = ["" for _ in choices]
    for chunk in sent(chat(include_usage=usage), *events)[:-1]:
        for choice in chunk["choices"]:
            streamed[choice["index"]] += choice["delta"].get("content") or ""
    whole = [choice["message"]["content"] for choice in collected.completion()["choices"]]
    assert whole == streamed == ["".join(pieces) for pieces in choices]


# whole answers -------------------------------------------------------------------------------


def collect(surface: Any, *events: StreamEvent) -> Collected:
    collected = Collected(surface, "id", "m", 7)
    for event in events:
        collected.add(event)
    return collected


def test_a_whole_chat_completion() -> None:
    events: list[StreamEvent] = [
        Accepted("r", 3),
        text("b", 1, seed=5),
        Event("r", kind="reasoning", text="hm"),
        text("a", logprobs=[LOGPROB]),
        end("length", 1),
        end(stop="x", usage=USAGE),
    ]
    assert collect("chat", *events).completion() == {
        "id": "id",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "a",
                    "refusal": None,
                    "reasoning_content": "hm",
                },
                "logprobs": {
                    "content": [
                        {
                            "token": "é",
                            "logprob": -0.25,
                            "bytes": [195, 169],
                            "top_logprobs": [{"token": "e", "logprob": -9999.0, "bytes": [101]}],
                        }
                    ],
                    "refusal": None,
                },
                "finish_reason": "stop",
                "stop_reason": "x",
            },
            {
                "index": 1,
                "message": {"role": "assistant", "content": "b", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
                "seed": 5,
            },
        ],
        "usage": USAGE_OBJECT,
    }


def test_collected_tool_calls() -> None:
    pieces = [
        ToolDelta(1, "c2", "hear", "{}"),
        ToolDelta(0, "c1", "look", '{"a'),
        ToolDelta(0, arguments='":1}'),
    ]
    events = [Event("r", kind="tool", tool=piece) for piece in pieces]
    whole = collect("chat", *events, end("tool_calls", usage=USAGE)).completion()
    assert whole["choices"][0]["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}},
            {"id": "c2", "type": "function", "function": {"name": "hear", "arguments": "{}"}},
        ],
    }


def test_a_whole_text_completion() -> None:
    events = [text("a", logprobs=[LOGPROB]), text("b"), end(usage=USAGE)]
    whole = collect("completions", *events).completion()
    assert whole["object"] == "text_completion"
    assert whole["choices"] == [
        {
            "index": 0,
            "text": "ab",
            "logprobs": {
                "tokens": ["é"],
                "token_logprobs": [-0.25],
                "top_logprobs": [{"e": -9999.0, "é": -0.25}],
                "text_offset": [0],
            },
            "finish_reason": "stop",
        }
    ]


def test_a_collected_failure_is_an_error() -> None:
    collected = collect("chat", text("x"), Failed("r", "deadline_exceeded", "Too late."))
    assert collected.ended
    assert collected.error is not None
    assert (collected.error.status, collected.error.message) == (504, "Too late.")
    assert not collect("chat", text("x"), end()).ended
