"""`GET /v1/ledger`, over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.config import Price
from gateway.ledger.experiments import look
from gateway.ledger.report import report
from gateway.stores.keys import KeyStore
from gateway.stores.ledger import Experiment, LedgerStore, Look
from gateway.tenants import Tenants
from tests.fakes.serving import Serve, scripted_config
from tests.gateway.ledger.test_experiments import BUDGET, conversations


async def test_what_was_spent_is_there_at_once(serve: Serve) -> None:
    config = scripted_config(budget=5)
    model = replace(config.models["one"], price=Price(output=5e5))
    gateway = await serve(replace(config, models={"one": model}))
    await gateway.chat(max_tokens=50)
    told = (await gateway.client.get("/v1/ledger")).json()
    assert (told["object"], told["days"]) == ("ledger", 7)
    (route,) = told["routes"]
    assert (route["route"], route["model"], route["requests"]) == ("chat", "one", 1)
    assert (route["completion_tokens"], route["dollars"]) == (2, 1.0)
    (tenant,) = told["tenants"]
    assert tenant["tenant"] == "open"
    budget = next(row for row in told["policies"] if row["policy"] == "budget")
    assert (budget["action"], budget["asked_tokens"], budget["allowed_tokens"]) == (
        "rewrite",
        50,
        5,
    )
    assert budget["estimated"]
    experiment = next(row for row in told["savings"] if row["policy"] == "budget")
    assert experiment["conversations"] == {"control": 0, "treated": 1}
    assert experiment["next_look"] == {"control": 100, "treated": 100}
    assert (experiment["saved"], experiment["quality"], experiment["looks"]) == ({}, {}, 0)


async def test_it_outlasts_an_exchange_of_the_configuration(serve: Serve) -> None:
    gateway = await serve(scripted_config(budget=5))
    await gateway.chat()
    gateway.exchange(scripted_config(budget=6))
    await gateway.chat()
    told = (await gateway.client.get("/v1/ledger")).json()
    assert told["routes"][0]["requests"] == 2
    epochs = {row["epoch"] for row in told["savings"] if row["policy"] == "budget"}
    assert len(epochs) == 2


@pytest.mark.parametrize("days", ["0", "-1", "x", "nan", "inf"])
async def test_days_that_are_none_are_refused(serve: Serve, days: str) -> None:
    gateway = await serve()
    response = await gateway.client.get("/v1/ledger", params={"days": days})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "days")
    assert (await gateway.client.get("/v1/ledger?days=0.5")).json()["days"] == 0.5


async def test_only_admin_keys_may_read_it(serve: Serve, tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys")
    plain, admin = keys.create("acme").text, keys.create("ops", admin=True).text
    gateway = await serve(tenants=Tenants(keys))
    for key, status in ((None, 401), (plain, 403), (admin, 200)):
        headers = {"authorization": f"Bearer {key}"} if key else {}
        response = await gateway.client.get("/v1/ledger", headers=headers)
        assert response.status_code == status
        one = await gateway.client.get("/v1/ledger/x", headers=headers)
        assert one.status_code == (404 if status == 200 else status)
    keys.close()


def looked(store: LedgerStore, factor: float) -> Look:
    store.write(conversations("control", 100) + conversations("treated", 400, factor))
    found = look(store, BUDGET, None, time_s=7.0)
    store.add_look(found)
    return found


def test_savings_are_shares_and_totals_with_intervals() -> None:
    store = LedgerStore(None)
    looked(store, 0.5)
    (experiment,) = report(store, 8.0, 1.0, {})["savings"]
    assert (experiment["looks"], experiment["looked_s"], experiment["harm"]) == (1, 7.0, None)
    assert (experiment["confidence"], experiment["estimated"]) == (0.95, False)
    saved = experiment["saved"]["completion_tokens"]
    share, total = saved["share"], saved["total"]
    assert 0 < share["low"] < 0.5 < share["high"] < 1
    assert share["low"] < share["estimate"] < share["high"]
    without = saved["control_mean"] * 800
    assert total["estimate"] == pytest.approx(without - saved["treated_mean"] * 800)
    assert total["low"] < total["estimate"] < total["high"]
    quality = experiment["quality"]["failed_share"]
    assert (quality["control"], quality["treated"]) == (0, 0)
    assert quality["difference"]["low"] < 0 < quality["difference"]["high"]


def test_what_cannot_be_compared_claims_nothing() -> None:
    store = LedgerStore(None)
    free = [replace(entry, dollars=None) for entry in conversations("control", 100)]
    store.write(free + conversations("treated", 400))
    store.add_look(look(store, BUDGET, None, time_s=7.0))
    (experiment,) = report(store, 8.0, 1.0, {})["savings"]
    assert experiment["saved"]["dollars"]["share"] is None
    assert experiment["saved"]["dollars"]["total"] is None


def test_harm_is_told() -> None:
    store = LedgerStore(None)
    looked(store, 2.0)
    harmful = {BUDGET: "conversations cost more", Experiment("x", "y", "z"): "not this one"}
    (experiment,) = report(store, 8.0, 1.0, harmful)["savings"]
    assert experiment["harm"] == "conversations cost more"
    assert experiment["saved"]["completion_tokens"]["share"]["high"] < 0


async def test_one_request_by_any_of_its_ids(serve: Serve) -> None:
    gateway = await serve(scripted_config(budget=5))
    answer = await gateway.chat(max_tokens=50, headers={"x-request-id": "mine"})
    await gateway.client.post("/v1/feedback", json={"request_id": "mine", "score": 0.5})
    for id in (answer.json()["id"], "mine"):
        told = (await gateway.client.get(f"/v1/ledger/{id}")).json()
        assert (told["object"], told["request_id"], told["score"]) == (
            "ledger.request",
            "mine",
            0.5,
        )
        assert answer.json()["id"].endswith(told["call_id"])
        assert (told["route"], told["completion_tokens"], told["user_tokens"]) == ("chat", 2, 1)
        budget, *others = told["policies"]
        assert (budget["policy"], budget["asked_tokens"], budget["allowed_tokens"]) == (
            "budget",
            50,
            5,
        )
        assert [each["policy"] for each in others] == ["cache", "coalesce"]
    # Nobody can put another request in its place by calling that one so.
    await gateway.chat(max_tokens=1, headers={"x-request-id": told["call_id"]})
    again = (await gateway.client.get(f"/v1/ledger/{answer.json()['id']}")).json()
    assert again == told
    given = {"request_id": told["call_id"], "score": 1}
    await gateway.client.post("/v1/feedback", json=given)
    assert (await gateway.client.get(f"/v1/ledger/{told['call_id']}")).json()["score"] == 1
    missing = await gateway.client.get("/v1/ledger/chatcmpl-0")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "request_not_found")
