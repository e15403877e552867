"""The calendar of budgets."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.budgets.limits import Limits, Period, Subject, limit_of
from gateway.budgets.period import period_at
from gateway.stores.budget import NEVER_S


def at(*moment: int) -> float:
    return datetime(*moment, tzinfo=UTC).timestamp()  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("period", "now_s", "name", "until_s"),
    [
        ("day", at(2026, 12, 31, 23, 59, 59), "2026-12-31", at(2027, 1, 1)),
        ("day", at(2027, 1, 1), "2027-01-01", at(2027, 1, 2)),
        ("month", at(2026, 12, 31, 23, 59, 59), "2026-12", at(2027, 1, 1)),
        ("month", at(2027, 1, 1), "2027-01", at(2027, 2, 1)),
        ("month", at(2028, 2, 29, 12), "2028-02", at(2028, 3, 1)),
        ("total", at(2027, 1, 1), "total", NEVER_S),
    ],
)
def test_periods_follow_the_calendar_in_utc(
    period: Period, now_s: float, name: str, until_s: float
) -> None:
    assert period_at(period, now_s) == (name, until_s)


@settings(deadline=None)
@given(st.floats(0, 4e9), st.sampled_from(["day", "month"]))
def test_each_moment_is_in_one_period(now_s: float, period: Period) -> None:
    name, until_s = period_at(period, now_s)
    assert now_s < until_s
    assert period_at(period, until_s - 0.5)[0] == name
    assert period_at(period, until_s)[0] != name


def test_limits_read_as_a_line() -> None:
    limits = Limits(60, 10_000, 5_000_000, 12.5, "day")
    assert str(limits) == "60 requests/min, 10,000 tokens/min, 5,000,000 tokens/day, $12.5/day"
    assert (str(Limits()), Limits().given) == ("none", False)
    assert str(Subject("key", "ab12", limits)) == "the key ab12"


def test_dollars_are_whole_billionths() -> None:
    assert limit_of(Limits(budget_dollars=0.1), "budget_dollars") == 100_000_000
    assert limit_of(Limits(budget_dollars=1_000_000), "budget_dollars") == 10**15
    assert limit_of(Limits(), "budget_dollars") is None
