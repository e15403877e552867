"""About how many tokens a text is, for any model, and the same for ever under one VERSION.

What a policy cuts must be repeatable from the request alone, wherever it is asked and whichever
model answers: so it counts with this and not with a tokenizer. Each byte of the UTF-8 has the
weight of its class, by what it says of the script. A byte-level vocabulary trained on English and
code needs a token for 4 to 5 letters of prose, one for each digit, and one or two for each
character of Chinese, where characters / 4 is five times too low. The weights are fitted to the
bundled model's tokenizer (least squares of the relative error on prose, agents' JSON, code and 16
languages): within 20 % on each kind of text. Vocabularies of 100,000 tokens and more need about
half as many for what is not English, so that a limit is reached early, never late.
"""

from __future__ import annotations

import string
from typing import Any

import msgspec

from policies.request import Request

VERSION = 1
"""Goes up with every change of what anything here returns: cuts move with it."""

MESSAGE_TOKENS = 5
"""What a chat template writes around a message: the turn's markers, its role, line ends."""

IMAGE_TOKENS = 1000
"""OpenAI's models count 85 to 1,105 for an image; its bytes say nothing about it."""


def _span(first: int, last: int) -> bytes:
    return bytes(range(first, last + 1))


_CLASSES: tuple[tuple[bytes, int], ...] = (
    (string.ascii_lowercase.encode(), 17),
    (b" ", 20),
    (_span(0x80, 0xBF), 0),  # goes with the lead byte before it
    (_span(0xE4, 0xE9), 185),  # Chinese characters
    (string.punctuation.encode(), 59),
    (string.digits.encode(), 133),
    (string.ascii_uppercase.encode(), 108),
    (_span(0x00, 0x1F) + b"\x7f", 20),  # line ends, tabs
    (b"\xe2\xe3", 170),  # typographic signs; kana and Chinese punctuation
    (_span(0xEA, 0xED), 265),  # Hangul
    (_span(0xCD, 0xD4), 92),  # Greek, Cyrillic
    (_span(0xD5, 0xDF), 108),  # Armenian, Hebrew, Arabic
    (b"\xe0\xe1", 155),  # the scripts of India and South-East Asia, Vietnamese
    (_span(0xC0, 0xCC), 275),  # Latin letters with marks
    (_span(0xF0, 0xFF), 330),  # emoji, rare characters
    (b"\xee\xef", 150),  # full-width forms
)
"""Bytes, and what one of them weighs in hundredths of a token. Each byte is in one class; the
commonest come first, because each pass leaves fewer for the next."""


def text_tokens(text: str) -> int:
    """Of a text, rounded up; lone surrogates count like any character of their plane."""
    left = text.encode("utf-8", "surrogatepass")
    hundredths = 0
    for members, weight in _CLASSES:
        if not left:
            break
        rest = left.translate(None, members)
        hundredths += weight * (len(left) - len(rest))
        left = rest
    return -(-hundredths // 100)


def message_tokens(message: dict[str, Any]) -> int:
    """Of one chat message as OpenAI writes it, its tool calls and what surrounds it included."""
    content = message.get("content")
    tokens = MESSAGE_TOKENS
    if isinstance(content, str):
        tokens += text_tokens(content)
    elif isinstance(content, list):
        tokens += sum(map(_part_tokens, content))
    for name in ("tool_calls", "function_call"):
        if calls := message.get(name):
            tokens += json_tokens(calls)
    return tokens


def request_tokens(request: Request) -> int:
    """Of everything that a model has to read, all prompts together."""
    tokens = sum(map(message_tokens, request.messages))
    tokens += sum(text_tokens(p) if isinstance(p, str) else len(p) for p in request.prompts)
    for value in (request.tools, request.parameters.get("documents")):
        tokens += json_tokens(value) if value else 0
    return tokens


def json_tokens(value: Any) -> int:
    """Of what a template writes out as JSON: tools, tool calls."""
    try:
        return text_tokens(msgspec.json.encode(value).decode())
    except (UnicodeEncodeError, RecursionError):
        # A lone surrogate or a nesting that no template will print either.
        return text_tokens(repr(value))


def _part_tokens(part: Any) -> int:
    """Of a part of a message; what is not text counts as an image does."""
    text = part.get(part.get("type", "")) if isinstance(part, dict) else None
    return text_tokens(text) if isinstance(text, str) else IMAGE_TOKENS
