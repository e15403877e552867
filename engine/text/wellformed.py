"""Python's `str` can hold half of a UTF-16 pair, which no text has and UTF-8 cannot write."""

from __future__ import annotations

import re

REPLACEMENT = "\ufffd"
_SURROGATE = re.compile("[\ud800-\udfff]")


def well_formed(text: str) -> str:
    """`text` with split pairs joined, and every lone surrogate as U+FFFD."""
    if _SURROGATE.search(text) is None:
        return text
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return _SURROGATE.sub(REPLACEMENT, joined)
