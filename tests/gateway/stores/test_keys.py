"""The key store: what is kept, what is shown, and what other processes see at once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from engine.protocol.errors import InvalidRequest, NotFound, Unavailable
from gateway.budgets.limits import Limits
from gateway.stores.keys import LAST_USED_STEP_S, KeyStore, split_key
from tests.fakes.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_000_000.0)


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> Iterator[KeyStore]:
    store = KeyStore(tmp_path / "fewer.sqlite3", clock=clock)
    yield store
    store.close()


def secret_of(text: str) -> str:
    parts = split_key(text)
    assert parts is not None
    return parts[1]


def test_a_key_is_made_found_and_listed(store: KeyStore, clock: FakeClock) -> None:
    assert store.is_empty()
    made = store.create("acme", routes=["chat", "code", "chat"], weight=2.0, expires_s=2_000_000.0)
    assert not store.is_empty()
    key = made.key
    assert (key.tenant, key.routes, key.weight) == ("acme", ("chat", "code"), 2.0)
    assert (key.created_s, key.expires_s) == (1_000_000.0, 2_000_000.0)
    assert (key.revoked_s, key.last_used_s) == (None, None)
    assert made.text.startswith(f"fw-{key.id}-")
    found = store.find(key.id)
    assert found is not None
    assert found.key == key
    assert found.matches(secret_of(made.text))
    assert not found.matches(secret_of(made.text)[:-1])
    assert store.list() == [key]


def test_secrets_are_long_unique_and_kept_nowhere(store: KeyStore) -> None:
    made = [store.create("acme") for _ in range(20)]
    secrets = {secret_of(new.text) for new in made}
    assert len(secrets) == 20
    assert min(map(len, secrets)) >= 43
    store.close()
    stored = b"".join(file.read_bytes() for file in store.path.parent.iterdir())
    assert not [secret for secret in secrets if secret.encode() in stored]
    shown = repr([made, store, [store.find(new.key.id) for new in made]])
    assert not [secret for secret in secrets if secret in shown]


def test_a_tenant_keeps_one_random_salt(store: KeyStore) -> None:
    a, b, other = (store.create(name).key.id for name in ("acme", "acme", "other"))
    salts = []
    for id in (a, b, other):
        found = store.find(id)
        assert found is not None
        salts.append(found.salt)
        assert found.salt not in repr(found)
    assert salts[0] == salts[1] != salts[2]
    assert len(salts[0]) == 64


def test_rotation_kills_the_old_secret_and_keeps_the_rest(store: KeyStore) -> None:
    old = store.create("acme", routes=["chat"], weight=3.0)
    new = store.rotate(old.key.id)
    assert new.key == old.key
    found = store.find(old.key.id)
    assert found is not None
    assert found.matches(secret_of(new.text))
    assert not found.matches(secret_of(old.text))


def test_revocation_is_final(store: KeyStore, clock: FakeClock) -> None:
    id = store.create("acme").key.id
    clock.now_s += 5
    assert store.revoke(id).revoked_s == 1_000_005.0
    clock.now_s += 5
    assert store.revoke(id).revoked_s == 1_000_005.0
    with pytest.raises(InvalidRequest, match="is revoked"):
        store.rotate(id)
    assert not store.is_empty()


def test_states(store: KeyStore, clock: FakeClock) -> None:
    key = store.create("acme", expires_s=clock.now_s + 10).key
    assert key.state(clock.now_s + 9.9) == "active"
    assert key.state(clock.now_s + 10) == "expired"
    assert store.revoke(key.id).state(clock.now_s + 10) == "revoked"


def test_unknown_keys_are_named(store: KeyStore) -> None:
    assert store.find("nope") is None
    for change in (store.revoke, store.rotate):
        with pytest.raises(NotFound, match="'nope'"):
            change("nope")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tenant": ""}, "tenant"),
        ({"tenant": "x" * 129}, "tenant"),
        ({"tenant": "a\nb"}, "tenant"),
        ({"weight": 0}, "weight"),
        ({"weight": float("nan")}, "weight"),
        ({"weight": float("inf")}, "weight"),
        ({"expires_s": 1.0}, "expires_s"),
        ({"expires_s": float("nan")}, "expires_s"),
    ],
)
def test_senseless_keys_are_refused(store: KeyStore, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        store.create(**{"tenant": "acme", **fields})
    assert refused.value.param == param


def test_limits_are_kept_changed_and_lifted(store: KeyStore) -> None:
    limits = Limits(requests_per_minute=5, budget_dollars=0.5, period="day")
    key = store.create("acme", limits=limits).key
    assert key.limits == limits
    assert store.limit(key.id, replace(limits, period="total")).limits != limits
    assert store.list()[0].limits == replace(limits, period="total")
    assert store.limit(key.id, Limits()).limits is None
    assert store.create("acme", limits=Limits()).key.limits is None
    with pytest.raises(NotFound, match="'nope'"):
        store.limit("nope", limits)


def test_a_tenants_limits_are_those_of_all_its_keys(store: KeyStore) -> None:
    keys = [store.create("acme").key, store.create("acme").key]
    other = store.create("other").key
    limits = Limits(tokens_per_minute=100)
    store.limit_tenant("acme", limits)
    found = [store.find(key.id) for key in (*keys, other)]
    assert [each and each.tenant_limits for each in found] == [limits, limits, None]
    assert store.tenants() == {"acme": limits, "other": None}
    store.limit_tenant("acme", None)
    assert store.tenants() == {"acme": None, "other": None}
    with pytest.raises(NotFound, match="'nobody'"):
        store.limit_tenant("nobody", limits)


def test_an_expiry_can_be_moved(store: KeyStore, clock: FakeClock) -> None:
    key = store.create("acme", expires_s=clock.now_s + 10).key
    assert store.expire(key.id, clock.now_s + 20).expires_s == clock.now_s + 20
    assert store.expire(key.id, None).expires_s is None
    for expires_s in (clock.now_s, float("nan"), float("inf")):
        with pytest.raises(InvalidRequest):
            store.expire(key.id, expires_s)
    with pytest.raises(NotFound):
        store.expire("nope", None)


def test_the_version_changes_with_every_change_of_anybody(store: KeyStore, tmp_path: Path) -> None:
    other = KeyStore(store.path)
    versions = [store.version()]

    def changed() -> bool:
        versions.append(store.version())
        return versions[-1] not in versions[:-1]

    assert not changed()
    id = store.create("acme").key.id
    assert changed()
    assert not changed()
    other.create("acme")
    assert changed()
    other.revoke(id)
    assert changed()
    store.rotate(other.create("x").key.id)
    assert changed()
    other.limit(id, Limits(requests_per_minute=1))
    assert changed()
    store.limit_tenant("acme", Limits(requests_per_minute=1))
    assert changed()
    assert not changed()
    other.close()


def test_last_used_is_coarse_and_does_not_disturb_the_cache(
    store: KeyStore, clock: FakeClock
) -> None:
    key = store.create("acme").key
    version = store.version()
    store.touch(key)
    clock.now_s += LAST_USED_STEP_S - 1
    store.touch(key)
    assert store.list()[0].last_used_s == 1_000_000.0
    clock.now_s += 1
    store.touch(key)
    assert store.list()[0].last_used_s == clock.now_s
    assert store.version() == version


def test_noting_the_use_gives_way_to_other_writers(store: KeyStore) -> None:
    key = store.create("acme").key
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store.touch(key)
    other.execute("ROLLBACK")
    other.close()
    assert store.list()[0].last_used_s is None


def test_a_disk_that_takes_nothing_more_locks_nobody_out(store: KeyStore) -> None:
    key = store.create("acme").key
    store._open().execute("PRAGMA query_only = 1")
    store.touch(key)
    with pytest.raises(Unavailable):
        store.revoke(key.id)
    assert store.find(key.id) is not None


def test_a_file_that_went_away_or_was_replaced_is_not_trusted(store: KeyStore) -> None:
    store.create("acme")
    moved = store.path.with_name("moved")
    store.path.rename(moved)
    with pytest.raises(Unavailable, match="cannot be used: No such file"):
        store.version()
    store.path.touch()
    with pytest.raises(Unavailable, match="was replaced while in use"):
        store.version()
    moved.rename(store.path)
    assert store.version()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fw",
        "fw-",
        "fw-a",
        "fw-a-",
        "fw--b",
        "sk-a-b",
        "fw-é-b",
        "fw-a/b-c",
        "fw-a-" + "b" * 200,
    ],
)
def test_what_is_no_key(text: str) -> None:
    assert split_key(text) is None


def test_secrets_may_hold_dashes() -> None:
    assert split_key("fw-ab12-x-y_z-") == ("ab12", "x-y_z-")
