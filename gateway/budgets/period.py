"""The calendar of budgets, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gateway.budgets.limits import Period
from gateway.stores.budget import NEVER_S


def period_at(period: Period, now_s: float) -> tuple[str, float]:
    """The name of the period that `now_s` (Unix time) lies in, and the Unix time of its end."""
    now = datetime.fromtimestamp(now_s, UTC)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "day":
        return f"{today:%Y-%m-%d}", (today + timedelta(days=1)).timestamp()
    if period == "month":
        # Any day of the next month: a month and its first 28 days are shorter than 60.
        later = today.replace(day=1) + timedelta(days=32)
        return f"{today:%Y-%m}", later.replace(day=1).timestamp()
    return "total", NEVER_S
