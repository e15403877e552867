"""Leads of the first tokens, and how early they settle the matter."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol.frames import Event, TokenLogprob
from gateway.routing.margins import Margins
from policies.route import Cascade


def token(*probabilities: float) -> TokenLogprob:
    tops = [TokenLogprob(str(i), i, math.log(p)) for i, p in enumerate(probabilities)]
    return TokenLogprob("t", 9, math.log(0.5), top=tops)


def event(*tokens: TokenLogprob) -> Event:
    return Event("id", text="x", tokens=len(tokens), logprobs=list(tokens))


def fed(margins: Margins, *leads: float) -> Margins:
    for lead in leads:
        margins.feed(event(token((1 + lead) / 2, (1 - lead) / 2 + 1e-12)))
    return margins


def test_it_is_known_as_soon_as_nothing_can_change_it() -> None:
    assert fed(Margins(Cascade(4, 0.5, 1)), 0.9).verdict is None
    assert fed(Margins(Cascade(4, 0.5, 1)), 0.9, 0.9, 0.9).verdict is True
    assert fed(Margins(Cascade(4, 0.5, 1)), 0.0, 0.0).verdict is None
    assert fed(Margins(Cascade(4, 0.5, 1)), 0.0, 0.0, 0.1).verdict is False


@given(
    st.lists(st.floats(0, 0.999), min_size=1, max_size=12),
    st.integers(1, 12),
    st.floats(0.01, 0.99),
)
def test_an_early_verdict_is_the_late_one(leads: list[float], tokens: int, least: float) -> None:
    margins = Margins(Cascade(tokens, least, 1))
    verdicts = [fed(margins, lead).verdict for lead in leads]
    settled = [verdict for verdict in verdicts if verdict is not None]
    if len(leads) >= tokens and abs(sum(leads[:tokens]) / tokens - least) > 1e-6:
        assert set(settled) == {sum(leads[:tokens]) / tokens >= least}


@pytest.mark.parametrize(
    ("logprob", "lead"),
    [
        (token(0.7, 0.2), 0.5),
        (token(0.2, 0.7), 0.5),
        (token(0.9), 0.9),
        (TokenLogprob("t", 9, math.log(0.8)), 0.8),
        (TokenLogprob("t", 9, 0.001), 1.0),
    ],
)
def test_leads(logprob: TokenLogprob, lead: float) -> None:
    for least, sure in ((lead - 0.001, True), (lead + 0.001, False)):
        margins = Margins(Cascade(1, least, 1))
        margins.feed(event(logprob))
        assert margins.verdict is sure


def test_who_tells_nothing_is_taken_for_sure() -> None:
    margins = Margins(Cascade(2, 0.5, 1))
    for _ in range(2):
        margins.feed(Event("id", text="x", tokens=1))
    assert (margins.are_known, margins.verdict) == (False, True)
