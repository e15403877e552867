from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.stops import StopMatcher

letters = st.text(alphabet="abc", max_size=24)
stop_lists = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=4)


def first_stop(text: str, stops: list[str]) -> tuple[int, str] | None:
    """(where it starts, the stop) of the stop that ends first; the longest of several."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return end - len(longest), longest
    return None


def must_hold(text: str, stops: list[str]) -> int:
    """How many last characters can still become a stop."""
    return max(
        size
        for size in range(len(text) + 1)
        if size == 0
        or any(len(stop) > size and stop.startswith(text[len(text) - size :]) for stop in stops)
    )


@settings(max_examples=500, deadline=None)
@given(pieces=st.lists(letters, max_size=6), stops=stop_lists, include=st.booleans())
def test_the_first_stop_wins_however_the_text_is_cut(
    pieces: list[str], stops: list[str], include: bool
) -> None:
    matcher = StopMatcher(stops, include)
    released, matched = "", None
    for piece in pieces:
        text, matched = matcher.feed(piece)
        released += text
        if matched is not None:
            break
    expected = first_stop("".join(pieces), stops)
    if expected is None:
        assert matched is None
        assert released + matcher.flush() == "".join(pieces)
    else:
        start, stop = expected
        assert matched == stop
        assert released == "".join(pieces)[:start] + (stop if include else "")
        assert matcher.flush() == ""


@settings(max_examples=500, deadline=None)
@given(pieces=st.lists(letters, max_size=6), stops=stop_lists)
def test_no_more_is_held_than_can_still_match(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    released, fed = "", ""
    for piece in pieces:
        text, matched = matcher.feed(piece)
        if matched is not None:
            return
        released, fed = released + text, fed + piece
        assert released == fed[: len(fed) - must_hold(fed, stops)]


def test_without_stops_everything_passes() -> None:
    matcher = StopMatcher([])
    assert matcher.feed("anything") == ("anything", None)
    assert matcher.flush() == ""


def test_a_stop_across_pieces() -> None:
    matcher = StopMatcher(["\nQ:"])
    assert matcher.feed("Paris.\n") == ("Paris.", None)
    assert matcher.feed("Q") == ("", None)
    assert matcher.feed(": more") == ("", "\nQ:")


def test_a_false_start_is_released_at_once() -> None:
    matcher = StopMatcher(["STOP"])
    assert matcher.feed("ST") == ("", None)
    assert matcher.feed("ART") == ("START", None)


def test_the_stop_can_stay_in_the_output() -> None:
    matcher = StopMatcher(["</b>"], include_stop=True)
    assert matcher.feed("<b>x</") == ("<b>x", None)
    assert matcher.feed("b> y") == ("</b>", "</b>")


def test_the_longest_of_stops_that_end_together_wins() -> None:
    assert StopMatcher(["b", "ab"]).feed("xab") == ("x", "ab")


def test_a_stop_within_a_longer_ones_beginning_is_found() -> None:
    assert StopMatcher(["abcd", "bc"]).feed("abce") == ("a", "bc")


def test_matchers_of_the_same_stops_do_not_share_state() -> None:
    first, second = StopMatcher(["ab"]), StopMatcher(["ab"])
    assert first.feed("a") == ("", None)
    assert second.feed("b") == ("b", None)
    assert first.feed("b") == ("", "ab")


@pytest.mark.parametrize("stop", ["a" * 255 + "b", "ab" * 127 + "c"])
def test_many_long_stops_cost_little(stop: str) -> None:
    matcher = StopMatcher([stop] + [f"{n}{stop}"[:256] for n in range(15)])
    start = time.thread_time()
    for _ in range(200):
        matcher.feed(stop[:-1])
    assert time.thread_time() - start < 1.0
