"""The ledger's file: what goes in comes out summed up, and old things are forgotten."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.protocol.errors import Unavailable
from gateway.stores.database import beside
from gateway.stores.ledger import MEASURED, Experiment, LedgerStore, Look
from policies.holdout import Arm
from tests.fakes.ledger import an_entry, ruling

BUDGET = Experiment("chat", "budget", "e")


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LedgerStore]:
    store = LedgerStore(tmp_path / "ledger" if request.param == "file" else None)
    yield store
    store.close()


def test_it_lies_beside_the_keys() -> None:
    assert beside(Path("/state/fewer.sqlite3"), "ledger") == Path("/state/fewer.ledger.sqlite3")


def test_nothing_exists_before_something_was_kept(store: LedgerStore) -> None:
    assert not store.exists
    store.write([an_entry()])
    assert store.exists


def test_requests_are_summed_up_by_route_and_tenant(store: LedgerStore) -> None:
    a = an_entry(prompt_tokens=10, completion_tokens=4, first_token_s=0.5, dollars=0.5)
    failed = replace(a, error="unavailable", tenant="b", first_token_s=None, dollars=None)
    store.write([a, a, failed, replace(a, route="code", cut=True)])
    chat, code = sorted(store.totals(("route", "model"), 0.0), key=lambda row: row["route"])
    assert (chat["route"], chat["model"], chat["requests"], chat["failed"]) == ("chat", "m", 3, 1)
    assert (chat["prompt_tokens"], chat["completion_tokens"], chat["dollars"]) == (30, 12, 1.0)
    assert chat["user_tokens"] == 30
    assert (code["requests"], code["cut"], code["mean_first_token_s"]) == (1, 1, 0.5)
    assert {row["tenant"]: row["requests"] for row in store.totals(("tenant",), 0.0)} == {
        "t": 3,
        "b": 1,
    }
    assert store.totals(("tenant",), a.time_s + 1) == []


def test_rulings_are_counted(store: LedgerStore) -> None:
    shadow = ruling(mode="shadow", arm=None, cut_tokens=7)
    store.write([an_entry(rulings=(shadow, ruling(arm="control"))), an_entry(rulings=(shadow,))])
    rows = {(row["mode"], row["arm"]): row for row in store.rulings(0.0)}
    assert rows["shadow", None]["requests"] == 2
    assert rows["shadow", None]["cut_tokens"] == 14
    assert rows["active", "control"]["requests"] == 1


def test_conversations_add_up_and_tenants_stay_apart(store: LedgerStore) -> None:
    in_control = (ruling(arm="control"),)
    a = an_entry(conversation="c", completion_tokens=4, rulings=in_control)
    store.write([a, replace(a, cut=True)])
    store.write([replace(a, completion_tokens=2), replace(a, tenant="b")])
    rows = [dict(zip(MEASURED, row, strict=True)) for row in store.conversations(BUDGET, "control")]
    assert sorted((row["requests"], row["completion_tokens"], row["cut"]) for row in rows) == [
        (1, 4, 0),
        (3, 10, 1),
    ]
    assert store.arms() == {BUDGET: {"control": 2}}
    assert store.conversations(BUDGET, "treated") == []


def test_shadows_are_no_experiment(store: LedgerStore) -> None:
    store.write([an_entry(rulings=(ruling(mode="shadow", arm=None),))])
    assert store.arms() == {}


def test_the_first_of_two_looks_counts(store: LedgerStore) -> None:
    first = Look(BUDGET, 1, 5.0, 100, 900, b"[]")
    assert store.add_look(first)
    assert not store.add_look(replace(first, time_s=6.0))
    assert store.looks() == {BUDGET: first}
    second = replace(first, number=2, control=200)
    assert store.add_look(second)
    assert store.looks() == {BUDGET: second}


@pytest.mark.parametrize("arm", ["control", "treated"])
def test_what_is_older_is_forgotten(store: LedgerStore, arm: Arm) -> None:
    for time_s in range(10):
        by = (ruling(arm=arm),)
        store.write([an_entry(time_s=float(time_s), conversation=str(time_s), rulings=by)])
        store.add_look(Look(Experiment("chat", "budget", str(time_s)), 1, time_s, 1, 1, b"[]"))
    store.prune(before_s=4.0, max_rows=100)
    assert store.arms() == {BUDGET: {arm: 6}}
    assert len(store.looks()) == 6
    assert [row["requests"] for row in store.totals(("tenant",), 0.0)] == [6]
    assert [row["requests"] for row in store.rulings(0.0)] == [6]
    store.prune(before_s=0.0, max_rows=2)
    assert store.arms() == {BUDGET: {arm: 2}}
    assert [row["requests"] for row in store.totals(("tenant",), 8.0)] == [2]


def test_a_batch_is_all_or_nothing(tmp_path: Path) -> None:
    store = LedgerStore(tmp_path / "ledger")
    store.write([])
    other = sqlite3.connect(store.path)
    other.execute("CREATE TRIGGER no BEFORE INSERT ON rulings BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(Unavailable, match="no"):
        store.write([an_entry(), an_entry(rulings=(ruling(),))])
    other.execute("DROP TRIGGER no")
    assert store.totals(("tenant",), 0.0) == []
    other.close()
    store.close()
