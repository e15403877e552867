"""The SSE parser, on the vectors of other parsers' public test suites and on its bounds."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol.errors import UpstreamFailed
from gateway.backends.sse import ServerSentEvent, SseParser

Locate = Callable[[str], Path]


def parse(chunks: list[bytes]) -> list[ServerSentEvent]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def vectors(shared_data: Locate) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        shared_data("sse/sse_parse_vectors.json").read_bytes()
    )["vectors"]
    return found


def test_every_vector_however_it_is_cut(shared_data: Locate) -> None:
    cases = vectors(shared_data)
    assert len(cases) == 57
    for case in cases:
        chunks = [base64.b64decode(chunk) for chunk in case["chunks_b64"]]
        expected = [ServerSentEvent(**event) for event in case["events"]]
        assert parse(chunks) == expected, case["id"]
        for size in (1, 2, 3, 5):
            assert parse(cut(b"".join(chunks), size)) == expected, (case["id"], size)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_characters_survive_cuts(size: int) -> None:
    text = "Zażółć 🧵 👩‍🚀 終わり"
    assert [e.data for e in parse(cut(f"data: {text}\n\n".encode(), size))] == [text]


def test_unicode_line_ends_do_not_end_a_line() -> None:
    text = "a\u2028b\u2029c\u0085d"
    assert [e.data for e in parse([f"data: {text}\n\n".encode()])] == [text]


def test_bytes_that_are_no_utf8_become_replacement_characters() -> None:
    assert [e.data for e in parse([b"data: a\xff\n\n"])] == ["a\ufffd"]


def test_an_unfinished_event_is_only_given_by_flush() -> None:
    parser = SseParser()
    assert parser.feed(b"data: [DONE]") == []
    assert parser.flush() == [ServerSentEvent("[DONE]")]
    assert parser.flush() == []


@pytest.mark.parametrize(
    "chunks",
    [
        [b"data: " + b"x" * 200],
        [b"x" * 60, b"x" * 60],
        [b"data: " + b"x" * 50 + b"\n"] * 2,
    ],
    ids=["one line", "a line in pieces", "many data lines"],
)
def test_events_are_bounded(chunks: list[bytes]) -> None:
    parser = SseParser(max_event_bytes=100)
    *before, last = chunks
    for chunk in before:
        assert parser.feed(chunk) == []
    with pytest.raises(UpstreamFailed, match="more than 100 bytes"):
        parser.feed(last)


_LINES = st.sampled_from(
    [b"data: a", b"data:b", b"data", b"event: e", b"id: 1", b"id", b": c", b"retry: 1", b"", b"",
     "data: é終".encode(), b"\xef\xbb\xbfdata: m", b"other: x"]
)  # fmt: skip
_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(_LINES, _ENDS), max_size=12), st.lists(st.integers(0, 80), max_size=6))
def test_cuts_never_change_the_events(lines: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(line + end for line, end in lines)
    places = sorted({min(place, len(stream)) for place in cuts} | {0, len(stream)})
    pieces = [stream[a:b] for a, b in pairwise(places)]
    assert parse(pieces) == parse([stream])
