"""`x-ratelimit-*`, as OpenAI's clients read them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gateway.budgets.claims import Standing
from gateway.budgets.limits import Field

NAMES = tuple(
    f"x-ratelimit-{what}-{of}"
    for of in ("requests", "tokens")
    for what in ("limit", "remaining", "reset")
)
_FIELDS: dict[str, tuple[Field, ...]] = {
    "requests": ("requests_per_minute",),
    "tokens": ("tokens_per_minute", "budget_tokens"),
}


def headers_of(standings: Sequence[Standing]) -> list[tuple[bytes, bytes]]:
    """Of requests and of tokens each: the limit of which the least is left, whoever's it is.

    A reset that never comes, of a budget once and for all, is left out.
    """
    headers = []
    for of, fields in _FIELDS.items():
        found = [standing for standing in standings if standing.claim.field in fields]
        if not found:
            continue
        tightest = min(found, key=lambda standing: standing.remaining)
        told = {"limit": str(tightest.claim.take.limit), "remaining": str(tightest.remaining)}
        if math.isfinite(tightest.reset_s):
            told["reset"] = duration(tightest.reset_s)
        headers += [(f"x-ratelimit-{what}-{of}".encode(), v.encode()) for what, v in told.items()]
    return headers


def duration(seconds: float) -> str:
    """Rounded up to milliseconds, as Go writes it: `0s`, `120ms`, `8.64s`, `6m0s`, `1h0m30s`."""
    milliseconds = math.ceil(max(0.0, seconds) * 1000)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
