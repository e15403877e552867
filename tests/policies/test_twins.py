"""Texts that repeat an earlier one, and how it is told."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.twins import NEAR_CHARACTERS, Library, Twin, pieces_of

FLIGHTS = "".join(
    f"Flight HAT{i} leaves at {i % 24}:00 for Denver, and has seats.\n" for i in range(40)
)
CHINESE = "".join(
    f"第{i}条规定，乘客可以在起飞前二十四小时内取消预订；退款将在七天之内到账。" for i in range(30)
)
UNSPACED = "".join(chr(0x4E00 + i * i * 7 % 5000) for i in range(1200))
CODE = "\n".join(f"def field_{i}(self):\n    return self._fields[{i}]\n" for i in range(30)).strip()


def library(*texts: str) -> Library:
    made = Library()
    for text in texts:
        made.add(text)
    return made


@pytest.mark.parametrize("text", [FLIGHTS.strip(), CHINESE, UNSPACED, CODE])
def test_the_same_text_is_told_by_its_beginning_and_end(text: str) -> None:
    twin = library("Something else.", text).find(text)
    assert twin is not None
    assert twin.changes == ()
    assert " ".join(text.split()).startswith(twin.begins)
    assert " ".join(text.split()).endswith(twin.ends)


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (FLIGHTS.strip(), "HAT7 leaves at 7:00", "HAT7 leaves at 9:00"),
        (CHINESE, "第7条规定，乘客可以", "第7条规定，乘客不可以"),
        (CODE, "self._fields[7]", "self._fields[77]"),
        (UNSPACED, UNSPACED[600:604], "改变了"),
    ],
)
def test_what_differs_is_told_whole(text: str, old: str, new: str) -> None:
    twin = library(text).find(text.replace(old, new))
    assert twin is not None
    added = "".join(change[2:] for change in twin.changes if change.startswith("+ "))
    removed = "".join(change[2:] for change in twin.changes if change.startswith("- "))
    differing = next(
        piece for piece in pieces_of(text.replace(old, new)) if piece not in pieces_of(text)
    )
    assert differing.strip() in added
    assert removed
    assert len(added) < len(text) / 4


def test_what_is_new_is_told_after_what_stands_before_it() -> None:
    text = FLIGHTS.strip()
    marked = text.replace("Flight HAT9 ", "Delayed!\nFlight HAT9 ")
    twin = library(text).find(marked)
    assert twin is not None
    assert twin.changes == ("  and has seats.", "+ Delayed!")
    at_first = library(text).find(f"Delayed!\n{text}")
    assert at_first is not None
    assert at_first.changes == ("  (at the beginning)", "+ Delayed!")


def test_changes_that_are_apart_are_told_apart() -> None:
    text = FLIGHTS.strip()
    changed = text.replace("HAT3 ", "HAT333 ").replace("HAT30 ", "HAT30x ")
    twin = library(text).find(changed)
    assert twin is not None
    assert len(twin.changes) == 4


def test_other_texts_have_no_twin() -> None:
    assert library(FLIGHTS.strip(), CODE).find(CHINESE) is None
    half = FLIGHTS.strip()[: len(FLIGHTS) // 2]
    assert library(FLIGHTS.strip()).find(half) is None
    assert library(half).find(FLIGHTS.strip()) is None


def test_the_nearest_of_several_is_named() -> None:
    first, second = FLIGHTS.strip(), FLIGHTS.strip().replace("Denver", "Boston")
    twin = library(first, second).find(second.replace("HAT3 ", "HAT333 "))
    assert twin is not None
    assert "Boston" in twin.begins


def test_a_text_that_reads_like_another_at_both_ends_is_not_named() -> None:
    """A reference that could mean two texts is none."""
    first, second = ("x" * 400 + middle + "y" * 400 for middle in ("one", "two"))
    both = library(first, second)
    assert library(first).find(first) == Twin("x" * 40, "y" * 40)
    assert both.find(first) is None
    assert both.find(second) is None


def test_texts_that_differ_further_in_are_quoted_at_more_length() -> None:
    first, second = ("x" * 100 + middle + "y" * 400 for middle in ("one", "two"))
    twin = library(first, second).find(second)
    assert twin is not None
    assert "two" in twin.begins


def test_very_long_texts_must_be_the_same() -> None:
    text = FLIGHTS * (NEAR_CHARACTERS // len(FLIGHTS) + 1)
    assert library(text).find(text) is not None
    assert library(text).find(text.replace("HAT7 ", "HAT8 ", 1)) is None
    assert library(FLIGHTS).find(text) is None


def test_what_differs_too_much_to_compare_is_no_twin() -> None:
    numbers = [f"{i * i} and {i} and so on\n" for i in range(600)]
    other = [
        line.replace("and so on", "etc.") if i % 6 == 0 else line for i, line in enumerate(numbers)
    ]
    assert library("".join(numbers)).find("".join(other)) is None


@settings(deadline=None)
@given(st.text(st.sampled_from("ab ,.。\n字"), max_size=400) | st.text(max_size=400))
def test_pieces_join_to_the_text(text: str) -> None:
    assert "".join(pieces_of(text)) == text
