"""What a client's `cache-control` header asks of us (RFC 9111, section 5.2.1).

It can only narrow what the route allows: there is no word in it that opens a cache.
"""

from __future__ import annotations

import msgspec

MAX_AGE_S = 2**31
"""What RFC 9111 takes for all that is longer."""


class CacheControl(msgspec.Struct, frozen=True):
    """no_cache:  neither a kept answer nor one that is on its way to others will do
    no_store:  nothing of this request is kept, or given to others
    max_age_s: a kept answer must not be older
    """

    no_cache: bool = False
    no_store: bool = False
    max_age_s: float = MAX_AGE_S


ANY = CacheControl()


def parse(header: str | None) -> CacheControl:
    """Words that are not ours are passed over; a `max-age` that is no number counts as 0."""
    if not header:
        return ANY
    words = [word.strip().lower() for word in header.split(",")]
    ages = [word.partition("=")[2].strip(' "') for word in words if word.startswith("max-age")]
    return CacheControl(
        "no-cache" in words,
        "no-store" in words,
        min(map(_age_s, ages), default=MAX_AGE_S),
    )


def _age_s(text: str) -> int:
    if not text.isdecimal():
        return 0
    # Python reads no number of more than 4,300 digits.
    return min(int(text), MAX_AGE_S) if len(text) <= 4000 else MAX_AGE_S
