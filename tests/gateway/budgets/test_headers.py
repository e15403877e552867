"""Rate-limit headers: durations, and whose limit is shown."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.budgets.claims import Standing, claims_of
from gateway.budgets.headers import NAMES, duration, headers_of
from gateway.budgets.limits import Limits, Subject
from gateway.budgets.need import Need
from gateway.stores.budget import NEVER_S, State


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (-1, "0s"),
        (0.0001, "1ms"),
        (0.12, "120ms"),
        (1, "1s"),
        (8.64, "8.64s"),
        (59.9996, "1m0s"),
        (60.4, "1m0.4s"),
        (360, "6m0s"),
        (3630, "1h0m30s"),
        (31 * 86400, "744h0m0s"),
    ],
)
def test_durations_are_written_as_go_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@settings(deadline=None)
@given(st.floats(0, 10**7))
def test_no_duration_is_too_short(seconds: float) -> None:
    text, total = duration(seconds), 0.0
    if text.endswith("ms"):
        assert seconds <= int(text[:-2]) / 1000 < seconds + 0.0011
        return
    for unit, worth in (("h", 3600), ("m", 60), ("s", 1)):
        if unit in text:
            number, _, text = text.partition(unit)
            total += float(number) * worth
    assert seconds - 1e-6 <= total <= seconds + 0.0011


def standings(*of: tuple[Limits, int, float]) -> list[Standing]:
    """Of routes with these limits: so much is used, and so long it lasts."""
    found = []
    for limits, used, reset_s in of:
        for claim in claims_of([Subject("route", "chat", limits)], Need(), 0.0):
            found.append(Standing(claim, State(used, reset_s, 0.0), reset_s))
    return found


def told(*of: tuple[Limits, int, float]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in headers_of(standings(*of))}


def test_the_tightest_is_shown() -> None:
    headers = told(
        (Limits(requests_per_minute=10, tokens_per_minute=1000), 4, 30.0),
        (Limits(requests_per_minute=100), 99, 59.0),
        (Limits(budget_tokens=1500), 1200, 7200.0),
    )
    assert list(headers) == list(NAMES)
    assert list(headers.values()) == ["100", "1", "59s", "1500", "300", "2h0m0s"]


def test_nothing_is_shown_of_what_is_not_limited() -> None:
    assert told((Limits(budget_dollars=3), 1, 1.0)) == {}
    assert list(told((Limits(requests_per_minute=3), 1, 1.0))) == list(NAMES[:3])


def test_what_never_resets_says_no_time_and_no_debt() -> None:
    headers = told((Limits(budget_tokens=10, period="total"), 25, NEVER_S))
    assert headers == {"x-ratelimit-limit-tokens": "10", "x-ratelimit-remaining-tokens": "0"}
