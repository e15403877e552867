"""Server-sent events as OpenAI's clients read them (WHATWG HTML, section 9.2, the writing half).

One `data:` line of JSON and a blank line for each event. Never `id:` or `retry:` lines: after
one, openai-python takes a comment for an event and dies on its empty data.
"""

from __future__ import annotations

from typing import Any

import orjson

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

# Line ends to clients that split like str.splitlines. JSON needs no escape for them; we give one.
_LINE_ENDS = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)


def one_line_json(value: Any) -> bytes:
    """`value` as JSON that no client can take for more than one line."""
    data = orjson.dumps(value)
    if not data.isascii():
        for raw, escaped in _LINE_ENDS:
            if raw in data:
                data = data.replace(raw, escaped)
    return data


def event(value: Any) -> bytes:
    """One event with `value` as its JSON data."""
    return b"data: " + one_line_json(value) + b"\n\n"
