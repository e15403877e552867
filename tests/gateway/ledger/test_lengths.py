"""What the ledger knows of the lengths of answers, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.ledger.entry import Entry
from gateway.ledger.ledger import Ledger
from gateway.ledger.lengths import control_lengths
from gateway.stores.ledger import Experiment, LedgerStore, Look
from gateway.telemetry.metrics import Metrics
from policies.budget import BudgetPolicy, Learning
from policies.holdout import Arm
from policies.lengths import lengths_of
from tests.fakes.clock import FakeClock
from tests.fakes.ledger import an_entry, ruling
from tests.gateway.test_holdout import Run, held, in_arm

BUDGET = Experiment("chat", "budget", "e")
LOOK = Look(BUDGET, 1, 2000.0, 100, 100, b"[]")


@pytest.fixture
def store() -> Iterator[LedgerStore]:
    store = LedgerStore(None)
    yield store
    store.close()


def answers(arm: Arm, lengths: range, **fields: Any) -> list[Entry]:
    """A conversation each."""
    return [
        an_entry(
            conversation=f"{arm}{tokens}",
            completion_tokens=tokens,
            rulings=(ruling(arm=arm),),
            **fields,
        )
        for tokens in lengths
    ]


def test_lengths_are_those_of_the_control_arm(store: LedgerStore) -> None:
    store.write(answers("control", range(1, 101)) + answers("treated", range(500, 600)))
    assert control_lengths(store, LOOK) == lengths_of((n, False) for n in range(1, 101))


@pytest.mark.parametrize(
    "fields", [{"cut": True}, {"error": "cancelled"}, {"error": "slow_reader"}]
)
def test_what_was_cut_or_left_would_have_been_longer(
    store: LedgerStore, fields: dict[str, Any]
) -> None:
    store.write(answers("control", range(1, 51)) + answers("control", range(51, 101), **fields))
    cut = [(n, n > 50) for n in range(1, 101)]
    assert control_lengths(store, LOOK) == lengths_of(cut)


@pytest.mark.parametrize(
    "fields",
    [
        {"error": "upstream_failed"},
        {"choices": 2},
        {"time_s": 3000.0},
        {"route": "other"},
        {"completion_tokens": 0, "reused_tokens": 9},
        {"rulings": (ruling(arm="control", epoch="other"),)},
        {"rulings": (ruling(arm="control", policy="history"),)},
        {"rulings": ()},
    ],
)
def test_what_says_nothing_of_an_answers_length_is_left_out(
    store: LedgerStore, fields: dict[str, Any]
) -> None:
    known = answers("control", range(1, 11))
    store.write([*known, replace(known[0], **fields)])
    assert control_lengths(store, LOOK).answers == 10


async def test_they_change_at_looks_alone(store: LedgerStore) -> None:
    """So that every process and every restart finds the same limit."""
    clock = FakeClock(1500.0)
    ledger = Ledger(store, Metrics(), clock=clock)
    store.write(answers("control", range(1, 101)) + answers("treated", range(1, 101)))
    assert ledger.lengths(BUDGET) is None
    await ledger.look()
    found = ledger.lengths(BUDGET)
    assert found is not None
    assert found.percentile(95) == 95
    store.write(answers("control", range(101, 190), time_s=1600.0))
    await ledger.look()
    assert ledger.lengths(BUDGET) == found
    other = Ledger(store, Metrics(), clock=FakeClock(9999.0))
    await other.look()
    assert other.lengths(BUDGET) == found
    store.write(answers("control", range(190, 201), time_s=1700.0))
    clock.now_s = 1800.0
    await ledger.look()
    assert ledger.lengths(BUDGET) == lengths_of((n, False) for n in range(1, 201))


async def test_answers_are_limited_by_what_was_learned() -> None:
    policy = held(BudgetPolicy(50, learning=Learning(95, least_tokens=1, least_answers=100)))
    run = Run(policy)
    ones = [
        replace(each, completion_tokens=1)
        for each in answers("control", range(100)) + answers("treated", range(100))
    ]
    assert await run.text(in_arm("treated", policy)) == "Hello"
    run.store.write(ones)
    await run.ledger.look()
    assert await run.text(in_arm("treated", policy)) == "Hel"
    assert run.decisions[0]["reason"] == "max_tokens filled: 1; as learned"
    assert await run.text(in_arm("control", policy)) == "Hello"
