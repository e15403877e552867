from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fewer.merged_log import MAX_LINE_CHARACTERS, LineSplitter, MergedLog


def split(data: bytes, size: int) -> list[str]:
    splitter = LineSplitter()
    lines: list[str] = []
    for start in range(0, len(data), size):
        lines += splitter.feed(data[start : start + size])
    return [*lines, *splitter.flush()]


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=200))
def test_cuts_anywhere_change_nothing(text: str) -> None:
    expected = text.split("\n")
    if not expected[-1]:
        expected.pop()
    for size in (1, 2, 3, 1000):
        assert split(text.encode(), size) == expected


def test_carriage_returns_at_line_ends_go() -> None:
    assert split(b"one\r\ntwo", 1) == ["one", "two"]


def test_what_is_not_utf8_is_replaced() -> None:
    assert split(b"\xffa\n\xe2\x82", 1) == ["\ufffda", "\ufffd"]


def test_a_line_that_never_ends_is_broken() -> None:
    splitter = LineSplitter()
    lines = list(splitter.feed(b"x" * (2 * MAX_LINE_CHARACTERS + 5)))
    assert [len(line) for line in lines] == [MAX_LINE_CHARACTERS] * 2
    assert list(splitter.flush()) == ["xxxxx"]


def test_lines_stand_under_their_names_in_one_column() -> None:
    written: list[str] = []
    log = MergedLog(["fewer", "smollm2"], written.append)
    log.line("fewer", "starting")
    log.line("smollm2", "loading")
    assert written == ["fewer   | starting", "smollm2 | loading"]
