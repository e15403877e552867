"""What looks find in two arms whose difference is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from msgspec.json import encode
from msgspec.structs import replace

from gateway.ledger.entry import Entry
from gateway.ledger.experiments import Finding, due, findings, harm, look
from gateway.ledger.feedback import Feedback
from gateway.stores.ledger import Experiment, LedgerStore, Look
from policies.holdout import Arm
from policies.savings import difference, interval
from tests.fakes.ledger import an_entry, ruling

BUDGET = Experiment("chat", "budget", "e")


@pytest.fixture
def store() -> Iterator[LedgerStore]:
    store = LedgerStore(None)
    yield store
    store.close()


def conversations(arm: Arm, count: int, factor: float = 1.0, **fields: Any) -> list[Entry]:
    """Heavy-tailed, of two requests each."""
    random = np.random.default_rng(count)
    entries = []
    for i, tokens in enumerate(random.lognormal(5, 0.7, count).tolist()):
        spent = {"completion_tokens": int(tokens * factor), "dollars": tokens * factor / 1e6}
        entry = an_entry(conversation=f"{arm}{i}", rulings=(ruling(arm=arm),), **spent | fields)
        entries += [entry, entry]
    return entries


def found_in(store: LedgerStore, last: Look | None = None) -> tuple[Look, dict[str, Finding]]:
    made = look(store, BUDGET, last, time_s=7.0)
    return made, {finding.measure: finding for finding in findings(made)}


def test_looks_are_due_by_the_size_of_the_arms_alone() -> None:
    assert not due({"control": 99, "treated": 5000}, None)
    assert not due({"control": 5000, "treated": 99}, None)
    assert not due({}, None)
    assert due({"control": 100, "treated": 100}, None)
    last = Look(BUDGET, 1, 0.0, 130, 5000, b"[]")
    assert not due({"control": 259, "treated": 5000}, last)
    assert due({"control": 260, "treated": 5000}, last)


def test_a_saving_is_found_and_is_no_harm(store: LedgerStore) -> None:
    store.write(conversations("control", 200) + conversations("treated", 800, 0.5))
    made, found = found_in(store)
    assert (made.number, made.control, made.treated, made.time_s) == (1, 200, 800, 7.0)
    completion = found["completion_tokens"]
    assert completion.treated == pytest.approx(0.5 * completion.control, rel=0.2)
    assert completion.treated_size == 1600
    assert completion.interval is not None
    assert completion.interval.low < np.log(0.5) < completion.interval.high < 0
    assert found["conversation_requests"].control == 2
    assert harm(made) is None


def test_what_never_happens_has_no_interval(store: LedgerStore) -> None:
    store.write(conversations("control", 100, dollars=None) + conversations("treated", 100))
    _, found = found_in(store)
    for measure in ("dollars", "conversation_dollars"):
        assert found[measure].interval is None
        assert found[measure].effect is None


def test_later_looks_stay_within_earlier_ones(store: LedgerStore) -> None:
    store.write(conversations("control", 100) + conversations("treated", 400, 0.8))
    first, before = found_in(store)
    store.write(conversations("control", 200) + conversations("treated", 800, 0.8))
    second, after = found_in(store, first)
    assert second.number == 2
    for name in ("completion_tokens", "conversation_tokens"):
        earlier, later = before[name].interval, after[name].interval
        assert earlier is not None
        assert later is not None
        assert earlier.low <= later.low < later.high <= earlier.high


def test_more_cost_is_harm_in_money_where_there_is_a_price(store: LedgerStore) -> None:
    store.write(conversations("control", 200) + conversations("treated", 800, 1.6))
    made, _ = found_in(store)
    assert "conversations cost more" in (harm(made) or "")
    assert "(conversation_dollars)" in (harm(made) or "")


def test_and_in_tokens_where_there_is_none(store: LedgerStore) -> None:
    control = conversations("control", 200, dollars=None)
    store.write(control + conversations("treated", 800, 1.6, dollars=None))
    made, _ = found_in(store)
    assert "(conversation_tokens)" in (harm(made) or "")


def test_more_tokens_for_less_money_are_no_harm(store: LedgerStore) -> None:
    store.write(conversations("control", 200))
    store.write(conversations("treated", 800, 1.6, dollars=1e-6))
    made, found = found_in(store)
    tokens = found["conversation_tokens"].interval
    assert tokens is not None
    assert tokens.low > 0
    assert harm(made) is None


def test_failing_more_often_is_harm(store: LedgerStore) -> None:
    treated = conversations("treated", 800)
    failing = [replace(each, error="unavailable", dollars=0.0) for each in treated[:400:2]]
    store.write([*conversations("control", 200), *treated, *failing])
    made, _ = found_in(store)
    assert (harm(made) or "").startswith("more requests fail: 0.1111 against 0 without it")


def test_no_difference_is_no_harm(store: LedgerStore) -> None:
    store.write(conversations("control", 200) + conversations("treated", 800))
    made, _ = found_in(store)
    assert harm(made) is None


QUALITIES = [
    ({"unparsed": True}, "more answers cannot be parsed: 0.2 against 0 without it"),
    ({"repeated": True}, "more questions are asked again: 0.2 against 0 without it"),
]


@pytest.mark.parametrize(("worse", "said"), QUALITIES)
def test_clearly_worse_answers_are_harm(
    store: LedgerStore, worse: dict[str, Any], said: str
) -> None:
    treated = [
        replace(each, **worse) if i % 5 == 0 else each
        for i, each in enumerate(conversations("treated", 800))
    ]
    store.write([*conversations("control", 200), *treated])
    made, found = found_in(store)
    assert (harm(made) or "").startswith(said)
    assert found["cut_share"].treated == 0


def test_to_be_cut_more_often_is_no_harm(store: LedgerStore) -> None:
    treated = conversations("treated", 800, cut=True)
    store.write(conversations("control", 200) + treated)
    made, found = found_in(store)
    assert found["cut_share"].treated == 1
    assert harm(made) is None


def rated(store: LedgerStore, arm: Arm, scores: list[float]) -> None:
    """Each conversation's second request gets one of these."""
    for number, (entry, score) in enumerate(
        zip(conversations(arm, len(scores))[::2], scores, strict=True)
    ):
        store.write([entry, replace(entry, call_id=f"{arm}{number}")])
        given = Feedback("t", f"{arm}{number}", f"{arm}{number}", score, given_s=1.0)
        assert store.add_feedback(given)


@pytest.mark.parametrize(("treated", "harms"), [(-1.0, True), (1.0, False)])
def test_answers_that_people_like_less_are_harm(
    store: LedgerStore, treated: float, harms: bool
) -> None:
    rated(store, "control", [1.0, 0.0, 1.0] * 34)
    rated(store, "treated", [treated, 0.0, treated] * 34)
    made, found = found_in(store)
    approval = found["approval"]
    assert approval.control == pytest.approx(5 / 6)
    assert approval.treated == pytest.approx((1 + treated) / 3 + 1 / 6)
    assert approval.treated_size == 102
    assert (harm(made) or "").startswith("people like the answers less") == harms


def test_a_few_ratings_say_nothing(store: LedgerStore) -> None:
    rated(store, "control", [1.0] * 19)
    rated(store, "treated", [-1.0] * 100)
    store.write(conversations("control", 200))
    _, found = found_in(store)
    assert found["approval"].treated == 0
    assert found["approval"].interval is None


def test_without_ratings_there_is_no_approval(store: LedgerStore) -> None:
    store.write(conversations("control", 100) + conversations("treated", 100))
    made, found = found_in(store)
    assert found["approval"] == Finding("approval", 0.0, 0.0, 0.0)
    assert harm(made) is None


def test_signals_of_quality_hold_together(store: LedgerStore) -> None:
    """Each by itself is wider than a measure of cost would be."""
    store.write(conversations("control", 200, cut=True) + conversations("treated", 800))
    control, treated = (
        store.conversations(BUDGET, "control"),
        store.conversations(BUDGET, "treated"),
    )
    compared = difference([(2.0, r[0]) for r in control], [(0.0, r[0]) for r in treated])
    assert compared is not None
    alone = interval(compared, 1)
    shown = found_in(store)[1]["cut_share"].interval
    assert shown is not None
    assert shown.low < alone.low < alone.high < shown.high


def test_a_look_of_an_earlier_version_knew_fewer_measures(store: LedgerStore) -> None:
    store.write(conversations("control", 200) + conversations("treated", 800, 1.6))
    made, found = found_in(store)
    known = [f for name, f in found.items() if name not in ("approval", "unparsed_share")]
    assert "conversations cost more" in (harm(replace(made, found=encode(known))) or "")
    store.write(conversations("control", 400))
    assert look(store, BUDGET, replace(made, found=encode(known)), time_s=8.0).number == 2
