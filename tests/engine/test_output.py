from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.output import Output, end_ids_of
from engine.protocol.frames import Event, TokenLogprob
from engine.protocol.sampling import Sampling
from engine.request import Request
from engine.runner.base import Sampled
from tests.fakes.tokenizer import END, START, byte_tokenizer


def output_of(sampling: Sampling, max_tokens: int = 100, choice: int = 0) -> Output:
    request = Request(id="r", prompts=[np.array([1], np.int32)], sampling=sampling)
    tokenizer = byte_tokenizer()
    return Output(
        request,
        choice,
        max_tokens=max_tokens,
        end_ids=end_ids_of(request, tokenizer),
        seed=7,
        tokenizer=tokenizer,
    )


def say(output: Output, *parts: str | bytes | int) -> list[Event]:
    """Feed text, bytes and ids, token by token, up to the event that ends it."""
    tokens: list[int] = []
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        tokens += [data] if isinstance(data, int) else list(data)
    events = []
    for token in tokens:
        event = output.accept(Sampled(token, -0.25))
        if event is not None:
            events.append(event)
            if event.finish is not None:
                break
    return events


def texts(events: list[Event]) -> list[str]:
    return [event.text for event in events]


def test_each_token_is_shown_at_once() -> None:
    events = say(output_of(Sampling()), "abc")
    assert texts(events) == ["a", "b", "c"]
    assert [event.tokens for event in events] == [1, 1, 1]
    assert (events[0].id, events[0].choice, events[0].kind) == ("r", 0, "text")


def test_the_seed_comes_with_the_first_event_only() -> None:
    assert [event.seed for event in say(output_of(Sampling()), "abc")] == [7, None, None]


def test_characters_come_out_whole() -> None:
    events = say(output_of(Sampling()), "Zażółć 🧵 👩‍🚀 終わり", END)
    assert "".join(texts(events)) == "Zażółć 🧵 👩‍🚀 終わり"
    assert not any("\ufffd" in text for text in texts(events))
    assert sum(event.tokens for event in events) == len("Zażółć 🧵 👩‍🚀 終わり".encode()) + 1


def test_a_character_cut_by_the_cap_is_a_replacement_character() -> None:
    events = say(output_of(Sampling(), 3), "a", "終".encode()[:2])
    assert texts(events) == ["a", "\ufffd"]
    assert events[-1].finish == "length"


def test_b05_the_cap_finishes_with_length() -> None:
    events = say(output_of(Sampling(), 5), "abcdefgh")
    assert (texts(events), events[-1].finish) == (["a", "b", "c", "d", "e"], "length")
    assert sum(event.tokens for event in events) == 5


def test_an_end_token_finishes_with_stop_and_shows_nothing() -> None:
    events = say(output_of(Sampling()), "ab", END, "never")
    assert texts(events) == ["a", "b", ""]
    assert (events[-1].finish, events[-1].stop, events[-1].tokens) == ("stop", None, 1)


def test_an_end_token_at_the_cap_is_a_stop() -> None:
    assert say(output_of(Sampling(), 3), "ab", END)[-1].finish == "stop"


def test_ignore_eos_goes_on_to_the_cap() -> None:
    events = say(output_of(Sampling(ignore_eos=True), 4), "ab", END, "c")
    assert ("".join(texts(events)), events[-1].finish) == ("abc", "length")


def test_a_stop_token_is_named_and_not_shown() -> None:
    events = say(output_of(Sampling(stop_token_ids=[ord("c")])), "abcd")
    assert ("".join(texts(events)), events[-1].stop) == ("ab", ord("c"))


def test_a_stop_token_is_shown_where_asked_for() -> None:
    events = say(output_of(Sampling(stop_token_ids=[ord("c")], include_stop=True)), "abcd")
    assert ("".join(texts(events)), events[-1].finish) == ("abc", "stop")


def test_stop_tokens_work_under_ignore_eos() -> None:
    sampling = Sampling(stop_token_ids=[START], ignore_eos=True)
    assert say(output_of(sampling), "a", START)[-1].stop == START


def test_stop_strings_are_held_back_exactly_as_long_as_they_can_match() -> None:
    events = say(output_of(Sampling(stop=["\nQ:"])), "a\nb\nQ:never")
    assert texts(events) == ["a", "\nb", ""]
    assert [event.tokens for event in events] == [1, 2, 3]
    assert (events[-1].finish, events[-1].stop) == ("stop", "\nQ:")


def test_a_stop_string_is_shown_where_asked_for() -> None:
    events = say(output_of(Sampling(stop=["\nQ:"], include_stop=True)), "a\nQ:never")
    assert "".join(texts(events)) == "a\nQ:"


def test_r03_no_empty_events_while_a_stop_is_held_back() -> None:
    events = say(output_of(Sampling(stop=["aaab"])), "aaac")
    assert texts(events) == ["aaac"]
    assert events[0].tokens == 4


@pytest.mark.parametrize("end", ["length", "eos"])
def test_held_text_comes_out_when_no_stop_can_follow(end: str) -> None:
    output = output_of(Sampling(stop=["xyz"]), 3 if end == "length" else 100)
    events = say(output, "axy", END)
    assert "".join(texts(events)) == "axy"
    assert (events[-1].finish, events[-1].stop) == ("length" if end == "length" else "stop", None)


def test_a_stop_completed_by_the_last_token_is_a_stop() -> None:
    events = say(output_of(Sampling(stop=["bc"]), 3), "abc")
    assert ("".join(texts(events)), events[-1].finish) == ("a", "stop")


def test_a_stop_completed_by_the_end_of_the_text_is_a_stop() -> None:
    events = say(output_of(Sampling(stop=["\ufffd"])), "a", "終".encode()[:2], END)
    assert ("".join(texts(events)), events[-1].stop) == ("a", "\ufffd")


def test_stops_and_end_tokens_count_only_after_min_tokens() -> None:
    sampling = Sampling(stop=["ab"], stop_token_ids=[ord("z")], min_tokens=4)
    events = say(output_of(sampling), "abzab", "ab")
    assert "".join(texts(events)) == "abzab"
    assert events[-1].finish == "stop"


def test_logprobs_come_with_the_text_they_belong_to() -> None:
    events = say(output_of(Sampling(stop=["xyz"], logprobs=0)), "axya終xyz")
    shown = [[entry.id for entry in event.logprobs or []] for event in events]
    assert texts(events) == ["a", "xya", "終", ""]
    assert shown == [[97], [120, 121, 97], list("終".encode()), []]
    assert events[-1].tokens == 3


def test_logprobs_of_an_end_token_are_not_reported() -> None:
    events = say(output_of(Sampling(logprobs=0)), "a", END)
    assert events[-1].logprobs is None


def test_a_logprob_carries_text_bytes_and_alternatives() -> None:
    top = np.array([65, 66], np.int32), np.array([-0.5, -np.inf], np.float32)
    event = output_of(Sampling(logprobs=2)).accept(Sampled(65, -0.5, *top))
    assert event is not None
    assert event.logprobs == [
        TokenLogprob(
            "A",
            65,
            -0.5,
            [65],
            [TokenLogprob("A", 65, -0.5, [65]), TokenLogprob("B", 66, -9999.0, [66])],
        )
    ]


@pytest.mark.parametrize("logprob", [float("-inf"), float("nan")])
def test_r29_logprobs_are_always_numbers_in_json(logprob: float) -> None:
    event = output_of(Sampling(logprobs=0)).accept(Sampled(65, logprob))
    assert b"-9999.0" in msgspec.json.encode(event)


@settings(deadline=None)
@given(
    text=st.text(alphabet="ab\n終", max_size=30),
    stops=st.lists(st.text(alphabet="ab\n終", min_size=1, max_size=4), max_size=3),
    cap=st.integers(1, 60),
    include=st.booleans(),
    minimum=st.integers(0, 4),
)
def test_whatever_is_held_back_the_sum_is_right(
    text: str, stops: list[str], cap: int, include: bool, minimum: int
) -> None:
    data = text.encode()
    minimum = min(minimum, cap, len(data))  # no end token comes earlier: the sampler masks them
    sampling = Sampling(stop=stops, include_stop=include, logprobs=0, min_tokens=minimum)
    output = output_of(sampling, cap)
    events = say(output, data, END)
    whole = data[:cap].decode(errors="replace")
    shown = "".join(texts(events))
    assert whole.startswith(shown)
    assert events[-1].finish is not None
    assert sum(event.tokens for event in events) == output.num_tokens
    assert all(event.text for event in events[:-1])
    logprobs = [entry.id for event in events for entry in event.logprobs or []]
    assert list(data[: len(logprobs)]) == logprobs
    if isinstance(events[-1].stop, str):
        assert events[-1].stop in whole
        assert len(bytes(logprobs)) >= len(shown.rstrip("\ufffd").encode())
    else:
        assert shown == whole
        if not minimum:
            assert not any(stop in shown for stop in stops)
