"""Regular expressions that no client's text can keep busy."""

from __future__ import annotations

import re
import time

import pytest

from gateway.routing.patterns import IN_A_ROW, NESTED, why_slow

SAFE = [
    "",
    "(?i)sql|查询",
    r"\b(prove|show)\b.*\bthat\b",
    r"^\s*(?:select|insert)\b.*\bfrom\b",
    r"(?:\d{1,3}\.){3}\d{1,3}",
    r"\d+(?:\.\d+)?",
    r"(?:\w++\s?+)+$",
    r"(?>foo|bar)+!",
    r"(?:\w+,)++x",
    r"(?=.*\d)(?=.*[A-Z]).+",
    r"(a)?(?(1)b+|c)",
    "[.。]{2,}",
]
ENDLESS = [
    r"(a+)+$",
    r"(\w+\s?)+$",
    r"(\s*\w+\s*)*!",
    r"(foo|fo+)+$",
    r"(a|b|ab)*$",
    r"(?:a?a)*b",
    r"(?i:(x+x+)+y)",
    r"(?:(?:a*)b?){20}c",
]


@pytest.mark.parametrize("pattern", SAFE)
def test_what_is_safe_ends_soon_on_every_text(pattern: str) -> None:
    assert why_slow(pattern) is None
    begun_s = time.thread_time()
    for text in ("a", "1", "1.", "a ", "ab", "1,", "foo", "select ", "show "):
        re.search(pattern, (text * 1600)[:1600] + "!\n")
    assert time.thread_time() - begun_s < 5


@pytest.mark.parametrize("pattern", ENDLESS)
def test_what_some_text_would_keep_busy_is_refused(pattern: str) -> None:
    assert why_slow(pattern) == NESTED


@pytest.mark.parametrize(
    "pattern", [".*a.*b.*c", r"(\w+ ){5}x", r"(?>.*a.*b.*c)", r"(?=.*a.*b.*c)"]
)
def test_and_what_shares_out_a_text_among_many(pattern: str) -> None:
    assert why_slow(pattern) == IN_A_ROW


def test_what_is_no_pattern_is_told_as_such() -> None:
    with pytest.raises(re.error):
        why_slow("(")
