"""Does the user ask nearly the same again? A sign that the answer before was of no use.

Two texts are nearly the same when their letters are, whatever the script, case, spaces and
punctuation, but for one place where something was added or left out, or a slip of two letters, and
they have the same numbers. Where a word was exchanged it is another question. The same question in
other words is not found. Both arms of a holdout are wrong alike, and only their difference is used.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import islice
from typing import Any

from policies.request import Request

NEAR = 0.8
"""The shorter text has so much of the longer one's letters."""

LOOK_BACK = 4
"""Texts of the user before the last one that it is compared with."""

MOST_CHARACTERS = 1000
"""Longer texts are compared for being the same only."""

LEAST_BYTES = 20
"""Of letters and digits, as UTF-8: "go on", "please continue" or 继续 may well be said twice."""

EXCHANGED_BYTES = 3
"""A word of that length, or a Chinese character, in the place of another is no slip."""

_DIGITS = re.compile(r"\d+")


def asks_again(request: Request) -> bool:
    """Is the last message the user's, and nearly one of those before it?

    A message that stays the last of the user's while tools are called is asked once.
    """
    messages = request.messages
    if len(messages) < 2 or messages[-1].get("role") != "user":
        return False
    users = (each for each in reversed(messages) if each.get("role") == "user")
    last, *earlier = map(_text_of, islice(users, LOOK_BACK + 1))
    if len(last) > MOST_CHARACTERS:
        return last in earlier
    letters = _letters(last)
    if _bytes(letters) < LEAST_BYTES:
        return False
    return any(_near(letters, _letters(each)) for each in earlier if len(each) <= MOST_CHARACTERS)


def _near(one: str, other: str) -> bool:
    shorter, longer = sorted((one, other), key=len)
    if len(shorter) < NEAR * len(longer) or _DIGITS.findall(one) != _DIGITS.findall(other):
        return False
    if shorter in longer:
        return True
    start = _shared(shorter, longer)
    shorter, longer = shorter[start:], longer[start:]
    end = _shared(shorter[::-1], longer[::-1])
    if end == len(shorter):
        return True
    return _bytes(longer[: len(longer) - end]) < EXCHANGED_BYTES


def _shared(one: str, other: str) -> int:
    """Letters that both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _letters(text: str) -> str:
    """Letters and digits alone, of one width and case."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(filter(str.isalnum, folded))


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _text_of(message: dict[str, Any]) -> str:
    """Of a message's last text: what is typed comes after what is attached."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    texts = [part.get("text") for part in content or () if isinstance(part, dict)]
    return next((text for text in reversed(texts) if isinstance(text, str)), "")
