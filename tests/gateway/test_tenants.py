"""Who gets in: keys in every state, changes made elsewhere, and a store that is away."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.protocol.errors import Unauthenticated, Unavailable
from gateway.budgets.limits import Limits
from gateway.stores.keys import KeyStore, NewKey
from gateway.tenants import MAX_REMEMBERED, OPEN, Tenants
from tests.fakes.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_000_000.0)


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> Iterator[KeyStore]:
    store = KeyStore(tmp_path / "fewer.sqlite3", clock=clock)
    yield store
    store.close()


@pytest.fixture
def made(store: KeyStore) -> NewKey:
    return store.create("acme", routes=["chat"], weight=2.0)


@pytest.fixture
def tenants(store: KeyStore, made: NewKey) -> Tenants:
    return Tenants(store)


@pytest.mark.parametrize("form", ["{}", "Bearer {}", "bearer  {} ", "BEARER {}"])
def test_a_good_key(tenants: Tenants, made: NewKey, store: KeyStore, form: str) -> None:
    tenant = tenants.authenticate(form.format(made.text))
    assert (tenant.name, tenant.key_id) == ("acme", made.key.id)
    assert tenant.allowed_routes == frozenset({"chat"})
    assert tenant.weight == 2.0
    stored = store.find(made.key.id)
    assert stored is not None
    assert tenant.salt == stored.salt
    assert tenant.salt not in repr(tenant)


def test_limits_come_with_the_key_and_change_at_once(
    store: KeyStore, tenants: Tenants, made: NewKey
) -> None:
    assert tenants.authenticate(made.text).limits is None
    own, common = Limits(requests_per_minute=5), Limits(budget_tokens=100)
    store.limit(made.key.id, own)
    store.limit_tenant("acme", common)
    tenant = tenants.authenticate(made.text)
    assert (tenant.limits, tenant.tenant_limits) == (own, common)


def test_keys_without_a_list_of_routes_may_use_all(store: KeyStore, tenants: Tenants) -> None:
    assert tenants.authenticate(store.create("acme").text).allowed_routes is None


@pytest.mark.parametrize("presented", [None, "", "  ", "Bearer", "Bearer ", "bearer   "])
def test_no_key(tenants: Tenants, presented: str | None) -> None:
    with pytest.raises(Unauthenticated, match="API key is missing") as refused:
        tenants.authenticate(presented)
    assert refused.value.code == "missing_api_key"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-1],
        lambda text: text + "x",
        lambda text: text[:-1] + ("a" if text[-1] != "a" else "b"),
        lambda text: text.replace("fw-", "sk-"),
        lambda text: text[:3] + "000000000000" + text[15:],
        lambda text: "fw-\xe9-x",
        lambda text: "Basic " + text,
        lambda text: "x" * 100_000,
    ],
)
def test_a_wrong_key_learns_nothing(tenants: Tenants, made: NewKey, change: object) -> None:
    assert callable(change)
    with pytest.raises(Unauthenticated) as refused:
        tenants.authenticate(change(made.text))
    assert refused.value.message == "This API key is not valid."
    assert refused.value.status == 401


def test_expiry_needs_no_event(store: KeyStore, tenants: Tenants, clock: FakeClock) -> None:
    text = store.create("acme", expires_s=clock.now_s + 10).text
    assert tenants.authenticate(text).name == "acme"
    clock.now_s += 10
    with pytest.raises(Unauthenticated, match="is expired"):
        tenants.authenticate(text)


def test_the_state_is_told_only_to_who_knows_the_secret(
    store: KeyStore, tenants: Tenants, made: NewKey
) -> None:
    store.revoke(made.key.id)
    with pytest.raises(Unauthenticated, match="is revoked"):
        tenants.authenticate(made.text)
    with pytest.raises(Unauthenticated, match="is not valid"):
        tenants.authenticate(made.text + "x")


def test_rotation_holds_at_once(store: KeyStore, tenants: Tenants, made: NewKey) -> None:
    tenants.authenticate(made.text)
    new = store.rotate(made.key.id)
    with pytest.raises(Unauthenticated):
        tenants.authenticate(made.text)
    assert tenants.authenticate(new.text).name == "acme"


def test_revocation_by_another_process_holds_at_once(
    store: KeyStore, tenants: Tenants, made: NewKey
) -> None:
    other = store.create("other")
    for text in (made.text, other.text):
        tenants.authenticate(text)
    script = (
        "import sys, pathlib; from gateway.stores.keys import KeyStore; "
        "KeyStore(pathlib.Path(sys.argv[1])).revoke(sys.argv[2])"
    )
    root = Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, "-c", script, str(store.path), made.key.id], check=True, cwd=root
    )
    with pytest.raises(Unauthenticated, match="is revoked"):
        tenants.authenticate(made.text)
    assert tenants.authenticate(other.text).name == "other"


def test_use_is_noted(store: KeyStore, tenants: Tenants, made: NewKey, clock: FakeClock) -> None:
    tenants.authenticate(made.text)
    assert store.list()[0].last_used_s == clock.now_s


def test_open_until_the_first_key(store: KeyStore) -> None:
    tenants = Tenants(store)
    assert Tenants(store).is_open
    assert tenants.authenticate(None) is OPEN
    assert tenants.authenticate("Bearer sk-anything") is OPEN
    made = store.create("acme")
    with pytest.raises(Unauthenticated):
        tenants.authenticate(None)
    store.revoke(made.key.id)
    with pytest.raises(Unauthenticated):
        tenants.authenticate(None)
    assert not Tenants(store).is_open


def test_open_for_ever() -> None:
    tenants = Tenants.open()
    assert tenants.is_open
    assert tenants.authenticate("Bearer fw-a-b") is OPEN


def test_a_store_that_is_away_lets_nobody_in(
    store: KeyStore, tenants: Tenants, made: NewKey
) -> None:
    """Closed: also for keys that were good a moment ago, which might be revoked by now."""
    tenants.authenticate(made.text)
    moved = store.path.with_name("moved")
    store.path.rename(moved)
    for presented in (made.text, None, "Bearer fw-a-b"):
        with pytest.raises(Unavailable, match=r"store fewer\.sqlite3 cannot be used"):
            tenants.authenticate(presented)
    moved.rename(store.path)
    assert tenants.authenticate(made.text).name == "acme"


def test_a_store_that_cannot_be_opened_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / "db").write_bytes(b"garbage" * 1000)
    with pytest.raises(Unavailable, match="cannot be used"):
        Tenants(KeyStore(tmp_path / "db")).authenticate(None)


def test_what_is_remembered_is_bounded(
    store: KeyStore, tenants: Tenants, made: NewKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_REMEMBERED >= 1000
    monkeypatch.setattr("gateway.tenants.MAX_REMEMBERED", 2)
    keys = [made, *(store.create(f"t{number}") for number in range(4))]
    for _ in range(2):
        for new in keys:
            assert tenants.authenticate(new.text).name == new.key.tenant
