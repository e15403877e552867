"""What a request is told that a limit refuses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from engine.protocol.errors import RateLimited
from gateway.budgets.claims import Standing
from gateway.budgets.limits import shown
from gateway.errors import QuotaExceeded


def refusing(standings: Sequence[Standing]) -> Standing:
    """Of those that refuse, the one that will for longest."""
    return max(standings, key=_severity)


def refusal_of(standing: Standing, now_s: float) -> RateLimited:
    """Whose limit it is, which one, and whether and when a retry can succeed."""
    claim, take = standing.claim, standing.claim.take
    whose = f"{claim.field} of {claim.subject}, {_amount(standing, take.limit)}"
    asked = f"this request may need {_amount(standing, take.amount)}"
    if take.windowed and math.isfinite(standing.state.wait_s):
        wait_s = standing.state.wait_s
        return RateLimited(
            f"Rate limit reached: {whose}. {asked[0].upper()}{asked[1:]}, and "
            f"{_amount(standing, standing.remaining)} are left. "
            f"Try again in {math.ceil(wait_s)} s.",
            param=claim.field,
            retry_after_s=wait_s,
        )
    if take.amount > take.limit:
        message = f"Request too large: {asked}, prompt and longest answer together. The limit is "
        message += f"{whose}. Send less, or a smaller max_tokens."
        if take.windowed:
            return RateLimited(message, param=claim.field)
        return QuotaExceeded(message, param=claim.field)
    return QuotaExceeded(
        f"Budget used up: {whose}{_ends(take.until_s)}. {asked[0].upper()}{asked[1:]}, and "
        f"{_amount(standing, standing.remaining)} are left.",
        param=claim.field,
    )


def _severity(standing: Standing) -> tuple[bool, float]:
    return not standing.claim.take.windowed and standing.state.wait_s > 0, standing.state.wait_s


def _amount(standing: Standing, amount: int) -> str:
    return shown(standing.claim.field, amount)


def _ends(until_s: float) -> str:
    if not math.isfinite(until_s):
        return ""
    return f", until {datetime.fromtimestamp(until_s, UTC):%Y-%m-%d %H:%M} UTC"
