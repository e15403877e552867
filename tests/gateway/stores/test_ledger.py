"""The ledger's file: what goes in comes out summed up, and old things are forgotten."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from engine.protocol.errors import Unavailable
from gateway.ledger.feedback import Feedback
from gateway.stores.database import beside, connect
from gateway.stores.ledger import Experiment, LedgerStore, Look
from gateway.stores.ledger_schema import MEASURED, MIGRATIONS
from gateway.stores.opening import open_ledger
from policies.holdout import Arm
from tests.fakes.ledger import an_entry, ruling
from tests.fakes.redis_server import RedisServer, redis_server

BUDGET = Experiment("chat", "budget", "e")


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "redis"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, redis: RedisServer
) -> Iterator[LedgerStore]:
    """One contract for all three."""
    if request.param == "redis":
        redis.empty()
        store = open_ledger(redis.url, tmp_path / "ledger")
    else:
        store = open_ledger(request.param, tmp_path / "ledger")
    yield store
    store.close()
    store.close()


def test_it_lies_beside_the_keys() -> None:
    assert beside(Path("/state/fewer.sqlite3"), "ledger") == Path("/state/fewer.ledger.sqlite3")


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_nothing_exists_before_something_was_kept(kind: str, tmp_path: Path) -> None:
    store = open_ledger(kind, tmp_path / "ledger")
    before = store.exists
    store.write([an_entry()])
    assert (before, store.exists) == (False, True)
    store.close()


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


def test_what_a_policy_asks_by_itself_is_spent_and_no_request(store: LedgerStore) -> None:
    in_arm = (ruling(arm="treated"),)
    a = an_entry(conversation="c", rulings=in_arm, seconds=1.0, first_token_s=0.5, dollars=0.5)
    child = replace(a, asked_by="history", error="unavailable", cut=True, first_token_s=9.0)
    store.write([a, child])
    (row,) = store.totals(("route",), 0.0)
    assert (row["requests"], row["children"], row["failed"], row["cut"]) == (1, 1, 0, 0)
    assert (row["completion_tokens"], row["dollars"], row["seconds"]) == (10, 1.0, 1.0)
    assert row["mean_first_token_s"] == 0.5
    assert [row["requests"] for row in store.rulings(0.0)] == [1]
    (found,) = store.conversations(BUDGET, "treated")
    sums = dict(zip(MEASURED, found, strict=True))
    assert (sums["requests"], sums["completion_tokens"], sums["dollars"]) == (1, 10, 1.0)
    assert (sums["failed"], sums["cut"], sums["seconds"]) == (0, 0, 1.0)


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


def feedback(id: str, score: float, **fields: Any) -> Feedback:
    return replace(Feedback("t", id, id, score, given_s=2.0), **fields)


def approvals(store: LedgerStore, arm: Arm) -> list[tuple[float, float]]:
    rows = [dict(zip(MEASURED, row, strict=True)) for row in store.conversations(BUDGET, arm)]
    return [(row["approval"], row["rated"]) for row in rows]


def test_feedback_counts_for_the_arms_of_its_request(store: LedgerStore) -> None:
    other = ruling(policy="history", arm="treated")
    store.write([an_entry(call_id="a", rulings=(ruling(arm="control"), other))])
    store.write([an_entry(call_id="b", conversation="d", rulings=(ruling(arm="control"),))])
    assert store.add_feedback(feedback("a", 1.0))
    assert sorted(approvals(store, "control")) == [(0, 0), (1, 1)]
    treated = store.conversations(Experiment("chat", "history", "e"), "treated")
    assert treated[0][MEASURED.index("approval")] == 1
    assert store.add_feedback(feedback("a", -1.0, label="wrong"))
    assert sorted(approvals(store, "control")) == [(0, 0), (0, 1)]
    assert store.add_feedback(feedback("b", 0))
    assert sorted(approvals(store, "control")) == [(0, 1), (0.5, 1)]
    (total,) = store.totals(("route",), 0.0)
    assert (total["ratings"], total["mean_score"]) == (2, -0.5)


def test_a_client_may_use_an_id_again_and_means_the_latest(store: LedgerStore) -> None:
    store.write([an_entry(call_id=id, request_id="mine") for id in ("1", "2")])
    assert store.add_feedback(feedback("mine", 1.0, call_id="no call"))
    store.write([an_entry(call_id="3", request_id="mine", tenant="u", model="n")])
    assert store.add_feedback(feedback("mine", -1.0, tenant="u"))
    assert not store.add_feedback(feedback("1", 1.0, tenant="u"))
    assert not store.add_feedback(feedback("4", 1.0))
    scores = {row["model"]: row["mean_score"] for row in store.totals(("model",), 0.0)}
    assert scores == {"m": 1.0, "n": -1.0}


def test_labels_are_told_with_the_commonest_first(store: LedgerStore) -> None:
    store.write([an_entry(call_id=str(i)) for i in range(4)])
    for i, label in enumerate(["slow", "错", "错", None]):
        store.add_feedback(feedback(str(i), -1.0, label=label))
    assert [(row["label"], row["ratings"]) for row in store.labels(0.0)] == [
        ("错", 2),
        (None, 1),
        ("slow", 1),
    ]
    assert store.labels(1001.0) == []


def test_feedback_is_forgotten_with_its_request(store: LedgerStore) -> None:
    store.write([an_entry(call_id="a", time_s=1.0)])
    store.add_feedback(feedback("a", 1.0))
    store.prune(before_s=2.0, max_rows=10)
    assert store.labels(0.0) == []
    assert not store.add_feedback(feedback("a", 1.0))


def test_signals_of_quality_add_up(store: LedgerStore) -> None:
    signs = {"unparsed": True, "accepted_tokens": 7, "rejected_tokens": 3}
    store.write([an_entry(**signs), an_entry(repeated=True, rulings=(ruling(),)), an_entry()])
    (total,) = store.totals(("route",), 0.0)
    assert (total["unparsed"], total["repeated"]) == (1, 1)
    assert (total["accepted_tokens"], total["rejected_tokens"]) == (7, 3)
    (row,) = store.conversations(BUDGET, "treated")
    assert row[MEASURED.index("repeated")] == 1


def test_a_file_of_an_earlier_version_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    old = connect(path, MIGRATIONS[:1])
    old.execute("INSERT INTO requests (time_s, route, model, tenant) VALUES (5, 'chat', 'm', 't')")
    old.execute(
        "INSERT INTO conversations VALUES ('chat', 'budget', 'e', 'control', 't:c', 5, "
        "1, 10, 5, 0.2, 0.001, 0, 0)"
    )
    old.close()
    store = LedgerStore(path)
    store.write([an_entry(call_id="a", rulings=(ruling(arm="control"),))])
    assert store.add_feedback(feedback("a", 1.0))
    assert approvals(store, "control") == [(1, 1)]
    (total,) = store.totals(("route",), 0.0)
    assert (total["requests"], total["unparsed"], total["ratings"]) == (2, 0, 1)
    store.close()
