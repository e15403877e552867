"""`/v1/admin/…`: who may, what is shown, what changes, and what is refused."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from gateway.budgets.limits import Limits
from gateway.config import Config, LimitsConfig, RouteConfig, Secret, ServerConfig
from gateway.stores.keys import KeyStore
from gateway.tenants import Tenants
from tests.fakes.serving import Gateway, Serve, scripted_config

PAGES = [
    ("GET", "/v1/admin/keys"),
    ("POST", "/v1/admin/keys"),
    ("POST", "/v1/admin/keys/ID/rotate"),
    ("POST", "/v1/admin/keys/ID/revoke"),
    ("POST", "/v1/admin/keys/ID/expire"),
    ("POST", "/v1/admin/keys/ID/limits"),
    ("GET", "/v1/admin/tenants"),
    ("POST", "/v1/admin/tenants/acme/limits"),
    ("GET", "/v1/admin/usage"),
]


def config(**limits: Any) -> Config:
    settings = LimitsConfig(store=Secret("memory"), **limits)
    routes = {"chat": RouteConfig("one", limits=Limits(requests_per_minute=50))}
    return replace(scripted_config(), routes=routes, limits=settings)


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[KeyStore]:
    store = KeyStore(tmp_path / "keys.sqlite3")
    yield store
    store.close()


class Admin:
    """Calls of the API with an admin's key."""

    def __init__(self, gateway: Gateway, key: str) -> None:
        self.gateway = gateway
        self.headers = {"authorization": f"Bearer {key}"}

    async def get(self, path: str) -> Any:
        response = await self.gateway.client.get(f"/v1/admin/{path}", headers=self.headers)
        assert response.status_code == 200
        return response.json()["data"]

    async def post(self, path: str, body: Any = None) -> Any:
        return await self.gateway.client.post(
            f"/v1/admin/{path}", json={} if body is None else body, headers=self.headers
        )

    async def chat(self, key: str) -> int:
        response = await self.gateway.chat(headers={"authorization": f"Bearer {key}"})
        return int(response.status_code)


@pytest.fixture
async def admin(serve: Serve, keys: KeyStore) -> Admin:
    made = keys.create("ops", admin=True)
    return Admin(await serve(config(), tenants=Tenants(keys)), made.text)


@pytest.mark.parametrize(("method", "path"), PAGES)
async def test_only_admin_keys_may(serve: Serve, keys: KeyStore, method: str, path: str) -> None:
    plain = keys.create("acme").text
    gateway: Gateway = await serve(config(), tenants=Tenants(keys))
    for key, status, code in (("", 401, "missing_api_key"), (plain, 403, "admin_key_needed")):
        headers = {"authorization": f"Bearer {key}"} if key else {}
        response = await gateway.client.request(method, path, json={}, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert [key.tenant for key in keys.list()] == ["acme"]


async def test_a_key_from_its_beginning_to_its_end(admin: Admin, keys: KeyStore) -> None:
    made = await admin.post("keys", {"tenant": "阿克梅", "routes": ["chat"], "weight": 2})
    assert made.status_code == 201
    assert made.headers["cache-control"] == "no-store"
    shown = made.json()
    text, id = shown.pop("key"), shown["id"]
    assert text.startswith(f"fw-{id}-")
    assert (shown["tenant"], shown["routes"], shown["weight"]) == ("阿克梅", ["chat"], 2.0)
    assert (shown["state"], shown["limits"], shown["admin"]) == ("active", None, False)
    assert await admin.chat(text) == 200
    listed = {key["id"]: key for key in await admin.get("keys")}
    assert listed[id].keys() == shown.keys()
    secret = text.split("-", 2)[2]
    assert secret not in str(listed)

    rotated = (await admin.post(f"keys/{id}/rotate")).json()
    assert rotated["id"] == id
    assert await admin.chat(text) == 401
    assert await admin.chat(rotated["key"]) == 200

    soon = time.time() + 3600
    assert (await admin.post(f"keys/{id}/expire", {"expires_s": soon})).json()["expires_s"] == soon
    never = await admin.post(f"keys/{id}/expire", {"expires_s": None})
    assert never.json()["expires_s"] is None

    revoked = (await admin.post(f"keys/{id}/revoke")).json()
    assert revoked["state"] == "revoked"
    assert "key" not in revoked
    assert await admin.chat(rotated["key"]) == 401
    again = await admin.post(f"keys/{id}/rotate")
    assert (again.status_code, "is revoked" in again.text) == (400, True)


async def test_limits_are_set_and_lifted(admin: Admin) -> None:
    made = await admin.post("keys", {"tenant": "acme", "limits": {"requests_per_minute": 1}})
    text, id = made.json()["key"], made.json()["id"]
    assert made.json()["limits"] == {"requests_per_minute": 1, "period": "month"}
    assert [await admin.chat(text) for _ in "12"] == [200, 429]
    more = await admin.post(f"keys/{id}/limits", {"requests_per_minute": 3, "budget_tokens": 10**6})
    assert more.json()["limits"]["budget_tokens"] == 10**6
    assert [await admin.chat(text) for _ in "123"] == [200, 200, 429]
    assert (await admin.post(f"keys/{id}/limits", {})).json()["limits"] is None
    assert await admin.chat(text) == 200

    tenant = await admin.post("tenants/acme/limits", {"requests_per_minute": 1, "period": "day"})
    assert tenant.json() == {
        "object": "tenant",
        "name": "acme",
        "limits": {"requests_per_minute": 1, "period": "day"},
    }
    assert [await admin.chat(text) for _ in "12"] == [200, 429]
    tenants = {each["name"]: each["limits"] for each in await admin.get("tenants")}
    assert tenants == {"acme": tenant.json()["limits"], "ops": None}


async def test_what_is_used_is_told(serve: Serve, keys: KeyStore) -> None:
    ops = keys.create("ops", admin=True)
    limits = Limits(tokens_per_minute=1000, budget_dollars=2.5, period="total")
    made = keys.create("acme", limits=limits)
    gone = keys.create("acme", limits=limits)
    keys.revoke(gone.key.id)
    settings = config(each_tenant=Limits(requests_per_minute=7))
    admin = Admin(await serve(settings, tenants=Tenants(keys)), ops.text)
    gateway = admin.gateway
    headers = {"authorization": f"Bearer {made.text}"}
    assert (await gateway.chat(max_tokens=10, headers=headers)).status_code == 200
    usage = await admin.get("usage")
    rows = {(row["subject"], row["name"], row["limit"]): row for row in usage}
    assert set(rows) == {
        ("key", made.key.id, "tokens_per_minute"),
        ("key", made.key.id, "budget_dollars"),
        ("tenant", "acme", "requests_per_minute"),
        ("tenant", "ops", "requests_per_minute"),
        ("route", "chat", "requests_per_minute"),
    }
    requests = rows["tenant", "acme", "requests_per_minute"]
    assert (requests["used"], requests["of"], requests["remaining"]) == (1, 7, 6)
    assert 55 < requests["resets_in_s"] <= 61
    assert rows["tenant", "ops", "requests_per_minute"]["used"] == 0
    assert rows["key", made.key.id, "tokens_per_minute"]["used"] > 0
    dollars = rows["key", made.key.id, "budget_dollars"]
    assert (dollars["of"], dollars["remaining"], dollars["resets_in_s"]) == (2.5, 2.5, None)


@pytest.mark.parametrize(
    ("path", "body", "param", "told"),
    [
        ("keys", {}, None, "tenant is missing"),
        ("keys", {"tenant": 7}, "tenant", "must be text"),
        ("keys", {"tenant": ""}, "tenant", "1 to 128"),
        ("keys", {"tenant": "a", "routes": ["none"]}, "routes[0]", "Known are: chat"),
        ("keys", {"tenant": "a", "wieght": 1}, "wieght", "Did you mean weight?"),
        ("keys", {"tenant": "a", "weight": 0}, "weight", "above 0"),
        ("keys", {"tenant": "a", "expires_s": 5}, "expires_s", "in the future"),
        ("keys", {"tenant": "a", "limits": 5}, "limits", "must be a mapping"),
        ("keys/ID/limits", {"budget_dollars": 0}, "budget_dollars", ">= 1e-09"),
        ("keys/ID/limits", {"tokens_per_minute": 1.5}, "tokens_per_minute", "a whole number"),
        ("keys/ID/limits", {"requests_per_minut": 1}, "requests_per_minut", "Did you mean"),
        ("keys/ID/limits", {"period": "week"}, "period", "day, month, total"),
        ("keys", {"tenant": "a", "expires_s": 1_796_103_667_033}, "expires_s", "Unix seconds"),
        ("keys", {"tenant": " a"}, "tenant", "no space around"),
        ("keys/ID/expire", {}, None, "expires_s is missing"),
        ("keys/ID/expire", {"expires_s": 1}, "expires_s", "in the future"),
        ("keys/ID/revoke", {"now": True}, "now", "unknown key"),
        ("tenants/ops/limits", {"period": []}, "period", "must be one of"),
    ],
)
async def test_what_is_wrong_is_named(
    admin: Admin, keys: KeyStore, path: str, body: Any, param: str | None, told: str
) -> None:
    before = keys.list()
    response = await admin.post(path.replace("ID", before[0].id), body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert told in error["message"]
    assert [key.limits for key in keys.list()] == [None]


async def test_who_is_not_there_is_a_404(admin: Admin) -> None:
    for path in ("keys/nope/rotate", "keys/nope/revoke", "keys/nope/limits", "tenants/x/limits"):
        response = await admin.post(path)
        assert response.status_code == 404, path
    assert (await admin.post("keys/nope/expire", {"expires_s": None})).status_code == 404


async def test_what_is_not_json_changes_nothing(admin: Admin, keys: KeyStore) -> None:
    """A page of another site may send forms and plain text without asking."""
    for media in ("text/plain", "application/x-www-form-urlencoded"):
        response = await admin.gateway.client.post(
            "/v1/admin/keys",
            content=b'{"tenant": "a"}',
            headers={**admin.headers, "content-type": media},
        )
        assert response.status_code == 415
    assert len(keys.list()) == 1


async def test_without_keys_only_this_machine_makes_the_first(serve: Serve, keys: KeyStore) -> None:
    server = ServerConfig(allowed_origins=("*",))
    gateway: Gateway = await serve(replace(config(), server=server), tenants=Tenants(keys))
    body = {"tenant": "ops", "admin": True}
    for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
        assert (await gateway.chat()).status_code == 200
        refused = await gateway.client.post("/v1/admin/keys", json=body, headers=headers)
        assert refused.status_code == 403
    assert keys.is_empty()
    own = {"origin": f"http://127.0.0.1:{gateway.port}"}
    made = await gateway.client.post("/v1/admin/keys", json=body, headers=own)
    assert made.status_code == 201
    # From now on everybody needs one.
    assert (await gateway.client.post("/v1/admin/keys", json=body)).status_code == 401
    admin = Admin(gateway, made.json()["key"])
    assert [key["tenant"] for key in await admin.get("keys")] == ["ops"]


async def test_each_change_is_a_line_of_the_audit_log(
    admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fewer.audit")
    made = (await admin.post("keys", {"tenant": "acme\n{}", "limits": {}})).json()
    assert made["error"]["param"] == "tenant"
    made = (await admin.post("keys", {"tenant": "acme"})).json()
    rotated = (await admin.post(f"keys/{made['id']}/rotate")).json()
    await admin.post(f"keys/{made['id']}/limits", {"budget_dollars": 5})
    await admin.post(f"keys/{made['id']}/expire", {"expires_s": None})
    await admin.post(f"keys/{made['id']}/revoke")
    await admin.post("tenants/acme/limits", {"requests_per_minute": 5})
    await admin.get("keys")
    lines = [record.message for record in caplog.records if record.name == "fewer.audit"]
    found = [orjson.loads(line) for line in lines]
    assert [line["action"] for line in found] == [
        "create", "rotate", "limit", "expire", "revoke", "limit",
    ]  # fmt: skip
    assert {line["by"] for line in found} == {admin.headers["authorization"].split("-")[1]}
    assert {line["tenant"] for line in found} == {"acme"}
    assert found[2]["limits"] == {"budget_dollars": 5.0, "period": "month"}
    for text in (made["key"], rotated["key"]):
        assert text.split("-", 2)[2] not in caplog.text


async def test_where_no_keys_are_kept_there_are_none(serve: Serve) -> None:
    gateway: Gateway = await serve(config())
    response = await gateway.client.get("/v1/admin/keys")
    assert (response.status_code, "keeps no keys" in response.text) == (404, True)
    usage = (await gateway.client.get("/v1/admin/usage")).json()["data"]
    assert [row["subject"] for row in usage] == ["route"]
