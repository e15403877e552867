"""Texts as the blocks that people paste and tools return."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.blocks import blocks_of


def found(text: str) -> list[tuple[str, bool]]:
    return [(text[each.start : each.end], each.pasted) for each in blocks_of(text)]


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("", []),
        ("\n \n", []),
        ("one\ntwo", [("one\ntwo", False)]),
        ("one\n\n \ntwo\n", [("one", False), ("two", False)]),
        ("one\n---\ntwo", [("one", False), ("two", False)]),
        ("a\n```py\nx\n\ny\n```\nb", [("a", False), ("x\n\ny", True), ("b", False)]),
        ("````\n```\nx\n```\n````", [("```\nx\n```", True)]),
        ("```\nnever closed\n\nx", [("never closed\n\nx", True)]),
        ("~~~\n```\n~~~\nb", [("```", True), ("b", False)]),
        ('<doc id="1">\n一\n\n二\n</doc>\n问', [("一", True), ("二", True), ("问", False)]),
        ("<br/>\nq", [("q", False)]),
        ("</doc>\nq", [("q", False)]),
        ("<doc>inline</doc>\nq", [("<doc>inline</doc>\nq", False)]),
        ("```\n<doc>\n```\nq", [("<doc>", True), ("q", False)]),
    ],
)
def test_where_blocks_begin_and_end(text: str, blocks: list[tuple[str, bool]]) -> None:
    assert found(text) == blocks


lines = st.sampled_from(["", "a", "```", "~~~~", "<d>", "</d>", "---", "字"])


@settings(deadline=None)
@given(st.lists(lines, max_size=30).map("\n".join))
def test_blocks_are_apart_and_in_order(text: str) -> None:
    ends = 0
    for block in blocks_of(text):
        assert ends <= block.start < block.end <= len(text)
        ends = block.end + 1


@pytest.mark.parametrize("text", [" " * 100_000 + "x", "\n" * 1_000_000, "<a" + " " * 100_000])
def test_white_space_takes_no_longer_than_its_length(text: str) -> None:
    begun_s = time.thread_time()
    assert len(blocks_of(text)) == (1 if text.strip() else 0)
    assert time.thread_time() - begun_s < 2
