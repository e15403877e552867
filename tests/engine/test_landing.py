"""The engine's soft limit. What must never happen: landing before it, inside of anything, beside a
stop, or elsewhere under other batches, chunks and preemptions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.output import Output, end_ids_of
from engine.protocol.errors import InvalidRequest
from engine.protocol.frames import Event, Generate
from engine.protocol.landing import LandingPoints
from engine.protocol.sampling import Sampling
from engine.request import Request
from engine.runner.base import Sampled
from tests.fakes.rig import Rig, request_of
from tests.fakes.tokenizer import END, byte_tokenizer

FOUR = "One. Two. Three. Four"


def output_of(soft: int | None, max_tokens: int = 100, **sampling: Any) -> Output:
    request = Request(
        id="r",
        prompts=[np.array([1], np.int32)],
        sampling=Sampling(**sampling),
        soft_max_tokens=soft,
    )
    tokenizer = byte_tokenizer()
    ends = end_ids_of(request, tokenizer)
    return Output(request, 0, max_tokens=max_tokens, end_ids=ends, seed=7, tokenizer=tokenizer)


def say(output: Output, *parts: str | bytes | int) -> list[Event]:
    """Feed text, bytes and ids, a token for each byte, up to the event that ends it."""
    tokens: list[int] = []
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        tokens += [data] if isinstance(data, int) else list(data)
    events: list[Event] = []
    for token in tokens:
        if (event := output.accept(Sampled(token, -0.25))) is not None:
            events.append(event)
            if event.finish is not None:
                break
    return events


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events)


def ended(events: list[Event]) -> tuple[str, str | None, bool]:
    """Text, finish, landed; nothing but the last event finishes or has landed."""
    assert not any(event.finish or event.landed for event in events[:-1])
    return text_of(events), events[-1].finish, events[-1].landed


def test_output_lands_at_the_first_end_after_the_soft_limit() -> None:
    assert ended(say(output_of(6), FOUR)) == ("One. Two. ", "length", True)


@pytest.mark.parametrize(
    ("soft", "text"), [(1, "One. "), (4, "One. "), (5, "One. Two. "), (9, "One. Two. ")]
)
def test_an_end_counts_that_is_in_the_token_at_the_limit(soft: int, text: str) -> None:
    output = output_of(soft)
    events = say(output, FOUR)
    assert text_of(events) == text
    # The last two are the space and the letter that show it to be one: produced, so counted.
    assert output.num_tokens == len(text) + 1
    assert sum(event.tokens for event in events) == output.num_tokens


def test_without_a_soft_limit_the_cap_cuts() -> None:
    assert ended(say(output_of(None, 12), FOUR)) == ("One. Two. Th", "length", False)


def test_what_was_produced_to_know_is_not_shown_and_has_no_logprobs() -> None:
    events = say(output_of(4, logprobs=0), "好。", "下一句".encode())
    assert ended(events) == ("好。", "length", True)
    shown = [entry.id for event in events for entry in event.logprobs or ()]
    assert bytes(shown) == "好。".encode()


def test_an_item_ends_before_its_line_end() -> None:
    assert ended(say(output_of(3), "- milk\n- eggs\n")) == ("- milk", "length", True)


def test_open_code_goes_on_to_its_end_or_to_the_cap() -> None:
    text = "```\na. B\n```\nMore. Text"
    assert ended(say(output_of(2), text)) == ("```\na. B\n```", "length", True)
    assert ended(say(output_of(2, 9), text)) == ("```\na. B\n", "length", False)


@pytest.mark.parametrize("text", ["It is 3.14 m", "see a.example/b c", "It is e.g. A", "In U.S. A"])
def test_nothing_is_torn(text: str) -> None:
    assert ended(say(output_of(1, len(text)), text)) == (text, "length", False)


def test_the_model_may_end_by_itself() -> None:
    assert ended(say(output_of(3), "Done.", END)) == ("Done.", "stop", False)
    assert ended(say(output_of(3), "Done.\n", END))[1:] == ("length", True)


@pytest.mark.parametrize(
    ("cap", "landed"), [(4, True), (5, True), (3, False), (6, False), (9, True)]
)
def test_at_the_cap_it_has_landed_if_it_stands_at_an_end(cap: int, landed: bool) -> None:
    text, finish, has_landed = ended(say(output_of(cap, cap), FOUR))
    assert (text, finish, has_landed) == (FOUR[:cap], "length", landed)


def test_a_character_that_the_cap_cuts_shows_the_end_before_it() -> None:
    events = say(output_of(6, 8), "很好。".encode() + "下".encode()[:2])
    assert ended(say(output_of(4, 11), "很好。下".encode()[:11])) == ("很好。", "length", True)
    assert events[-1].finish == "length"
    assert not events[-1].landed


def test_a_stop_that_is_complete_first_wins() -> None:
    assert ended(say(output_of(2, stop=["\n\n"]), "Yes.\n\nNo")) == ("Yes.", "stop", False)
    assert ended(say(output_of(2, stop=["."]), "Yes. No")) == ("Yes", "stop", False)


def test_a_stop_that_might_have_come_does_not_keep_it_from_landing() -> None:
    assert ended(say(output_of(2, stop=["\nQ:"]), "Yes.\nQ No")) == ("Yes.", "length", True)


@pytest.mark.parametrize("include", [True, False])
def test_an_end_inside_a_stop_is_none(include: bool) -> None:
    sampling: dict[str, Any] = {"stop": ["s. N"], "include_stop": include}
    text = "Yes. N" if include else "Ye"
    assert ended(say(output_of(1, **sampling), "Yes. No")) == (text, "stop", False)


def test_a_stop_token_goes_before_landing() -> None:
    events = say(output_of(1, stop_token_ids=[ord("\n")], include_stop=True), "- milk\n")
    assert ended(events) == ("- milk\n", "stop", False)


def test_min_tokens_are_produced_first() -> None:
    assert ended(say(output_of(1, min_tokens=8), FOUR))[0] == "One. Two. "


def test_a_soft_limit_above_the_cap_changes_nothing() -> None:
    assert ended(say(output_of(50, 12), FOUR)) == ("One. Two. Th", "length", False)


def test_a_soft_limit_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="soft_max_tokens") as caught:
        request_of("r", soft_max_tokens=0).validate(258)
    assert caught.value.param == "soft_max_tokens"
    assert Generate(id="r").soft_max_tokens is None


said = st.lists(
    st.sampled_from(
        ["a", "B", " ", ". ", ".", "\n", "。", "好", "- a\n", "```", "\n```\n", "1", "e.g."]
    ),
    max_size=25,
).map("".join)  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(
    text=said,
    soft=st.integers(1, 30),
    cap=st.integers(1, 60),
    stops=st.lists(st.sampled_from([". ", "\n\n", "。好", "B"]), max_size=2),
    include=st.booleans(),
    minimum=st.integers(0, 4),
)
@example("a.\n", 1, 60, [], False, 0)
def test_whatever_is_said_it_lands_nowhere_else(
    text: str, soft: int, cap: int, stops: list[str], include: bool, minimum: int
) -> None:
    data = text.encode()
    minimum = min(minimum, cap, len(data))
    sampling: dict[str, Any] = {"stop": stops, "include_stop": include, "min_tokens": minimum}
    plain = say(output_of(None, cap, **sampling), data, END)
    output = output_of(soft, cap, **sampling)
    events = say(output, data, END)
    shown, finish, landed = ended(events)
    assert text_of(plain).startswith(shown)
    assert sum(event.tokens for event in events) == output.num_tokens <= cap
    if not landed:
        assert (shown, finish) == ended(plain)[:2]
        return
    assert finish == "length"
    # A clean place, and its last character came with a token at the limit or later.
    points = LandingPoints()
    points.feed(shown)
    assert points.ends_cleanly or points.feed("\nX") is None
    assert output.num_tokens == cap or len(shown.rstrip().encode()) >= max(soft, minimum)


SAYABLE = [ord(letter) for letter in "aB. \n.-1"]


def requests(soft: int) -> list[Request]:
    return [
        request_of(
            f"r{number}",
            f"prompt number {number}" * (1 + number % 4),
            max_tokens=120,
            n=1 + number % 3,
            soft_max_tokens=soft,
            sampling=Sampling(
                temperature=0.8,
                seed=number,
                allowed_token_ids=SAYABLE,
                stop=["-1"] if number % 2 else [],
            ),
            expected_tokens=1,
        )
        for number in range(12)
    ]


def answers(rig: Rig, asked: list[Request]) -> dict[tuple[str, int], tuple[str, str | None, bool]]:
    for request in asked:
        rig.submit(request)
    rig.run()
    rig.assert_drained()
    found = {}
    for request in asked:
        events = rig.sink.events(request.id)
        for choice in range(request.n):
            found[request.id, choice] = ended([e for e in events if e.choice == choice])
    return found


def test_batches_chunks_and_preemption_land_at_the_same_places() -> None:
    alone: dict[tuple[str, int], tuple[str, str | None, bool]] = {}
    for request in requests(50):
        alone |= answers(Rig(), [request])
    assert sum(landed for _, _, landed in alone.values()) > len(alone) / 2
    assert answers(Rig(), requests(50)) == alone
    assert answers(Rig(max_num_batched_tokens=16), requests(50)) == alone
    crowded = Rig(num_blocks=30)
    assert answers(crowded, requests(50)) == alone
    assert crowded.core.statistics().preemptions > 0


def test_usage_counts_all_that_was_produced() -> None:
    rig = Rig()
    asked = requests(50)
    answers(rig, asked)
    for request in asked:
        tokens = sum(event.tokens for event in rig.sink.events(request.id))
        assert rig.sink.usage(request.id).completion_tokens == tokens
