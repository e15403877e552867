"""`POST /v1/feedback`, over HTTP: whose, which, how much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.stores.keys import KeyStore
from gateway.tenants import Tenants
from tests.fakes.serving import Gateway, Serve, scripted_config


async def give(gateway: Gateway, key: str | None = None, **body: Any) -> Any:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return await gateway.client.post("/v1/feedback", json=body, headers=headers)


async def ratings(gateway: Gateway) -> tuple[int, float | None]:
    (row,) = (await gateway.client.get("/v1/ledger")).json()["routes"]
    return row["ratings"], row["mean_score"]


@pytest.mark.parametrize("named_by", ["answer", "header", "client"])
async def test_an_answer_is_named_by_any_of_its_ids(serve: Serve, named_by: str) -> None:
    gateway = await serve(scripted_config(budget=5))
    answer = await gateway.chat(
        headers={"x-request-id": "mine-1"} if named_by == "client" else None
    )
    ids = {"answer": answer.json()["id"], "client": "mine-1"}
    id = ids.get(named_by, answer.headers["x-request-id"])
    given = await give(gateway, request_id=id, score=0.5, label="顺")
    assert given.status_code == 200
    assert given.json() == {"object": "feedback", "request_id": id, "score": 0.5, "label": "顺"}
    assert await ratings(gateway) == (1, 0.5)
    told = (await gateway.client.get("/v1/ledger")).json()["feedback"]
    assert told == [{"route": "chat", "label": "顺", "ratings": 1, "mean_score": 0.5}]


async def test_the_latest_word_on_an_answer_holds(serve: Serve) -> None:
    gateway = await serve(scripted_config(budget=5))
    id = (await gateway.chat()).json()["id"]
    for body in ({"thumb": "down"}, {"thumb": "up"}, {"score": -0.5}):
        assert (await give(gateway, request_id=id, **body)).status_code == 200
    assert await ratings(gateway) == (1, -0.5)


async def test_nobody_learns_of_another_tenants_requests(serve: Serve, tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys")
    mine, colleague, other = (keys.create(name).text for name in ("acme", "acme", "else"))
    gateway = await serve(tenants=Tenants(keys))
    answer = await gateway.chat(headers={"authorization": f"Bearer {mine}"})
    id = answer.json()["id"]
    foreign, unknown = [
        await give(gateway, other, request_id=name, thumb="up") for name in (id, "x" * len(id))
    ]
    assert (foreign.status_code, unknown.status_code) == (404, 404)
    told, told_of_none = [each.json()["error"] for each in (foreign, unknown)]
    assert told["code"] == "request_not_found"
    assert told["message"].replace(id, "") == told_of_none["message"].replace("x" * len(id), "")
    assert (await give(gateway, colleague, request_id=id, thumb="up")).status_code == 200
    assert (await give(gateway, None, request_id=id, thumb="up")).status_code == 401
    keys.close()


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        ({"request_id": "x"}, None, "either score"),
        ({"request_id": "x", "score": 1, "thumb": "up"}, None, "either score"),
        ({"request_id": "x", "score": 1.01}, "score", "<= 1.0, not 1.01"),
        ({"request_id": "x", "score": "good"}, "score", "must be a number, not 'good'"),
        ({"request_id": "x", "thumb": "sideways"}, "thumb", "one of up, down"),
        ({"request_id": "x", "thumb": ["up"]}, "thumb", "one of up, down, not a list"),
        ({"request_id": "", "score": 1}, "request_id", "length >= 1"),
        ({"request_id": "x" * 10_000, "score": 1}, "request_id", "length <= 128"),
        ({"request_id": "x", "score": 1, "label": "x" * 65}, "label", "length <= 64"),
        ({"request_id": "x", "rating": 1}, "rating", "unknown key"),
        ({"score": 1}, None, "request_id is missing"),
    ],
)
async def test_what_is_wrong_is_named(
    serve: Serve, body: dict[str, Any], field: str | None, said: str
) -> None:
    gateway = await serve()
    response = await give(gateway, **body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == field
    assert said in error["message"]
    assert len(error["message"]) < 300
