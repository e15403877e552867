from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from engine.protocol.errors import Unauthenticated
from fewer.main import main
from gateway.stores.keys import KeyStore
from gateway.tenants import Tenants

CONFIG = """
store: sqlite:keys.sqlite3
models:
  small: {gguf: smollm2-135m}
routes:
  chat: {model: small}
  extract: {model: small}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "fewer.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def store(config: Path) -> Iterator[KeyStore]:
    with closing(KeyStore(config.with_name("keys.sqlite3"))) as opened:
        yield opened


def keys(config: Path, *words: str) -> int:
    action, *rest = words
    return main(["keys", action, "--config", str(config), *rest])


def created(config: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert keys(config, "create", *words) == 0
    return capsys.readouterr().out.strip()


def test_a_created_key_lets_its_tenant_in(
    config: Path, store: KeyStore, capsys: pytest.CaptureFixture[str]
) -> None:
    text = created(config, capsys, "--tenant", "acme", "--routes", "chat, extract")
    tenant = Tenants(store).authenticate(f"Bearer {text}")
    assert tenant.name == "acme"
    assert tenant.allowed_routes == frozenset({"chat", "extract"})


def test_the_first_key_is_announced_as_what_closes_the_door(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys(config, "create", "--tenant", "acme")
    assert "every request needs one" in capsys.readouterr().err
    keys(config, "create", "--tenant", "acme")
    assert "every request needs one" not in capsys.readouterr().err


def test_the_key_is_shown_once_and_kept_nowhere(
    config: Path, store: KeyStore, capsys: pytest.CaptureFixture[str]
) -> None:
    text = created(config, capsys, "--tenant", "acme")
    secret = text.split("-", 2)[2]
    assert keys(config, "list") == 0
    listed = capsys.readouterr()
    assert secret not in listed.out + listed.err
    with closing(sqlite3.connect(store.path)) as connection:
        assert secret not in "\n".join(connection.iterdump())


def test_the_list_says_whose_and_how_things_stand(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    created(config, capsys, "--tenant", "acme", "--routes", "chat", "--expires", "30d")
    gone = created(config, capsys, "--tenant", "globex").split("-")[1]
    keys(config, "revoke", gone)
    capsys.readouterr()
    assert keys(config, "list") == 0
    title, first, second = capsys.readouterr().out.splitlines()
    columns = ["ID", "TENANT", "ROUTES", "STATE", "CREATED", "EXPIRES", "USED", "LIMITS"]
    assert title.split() == columns
    assert first.split()[1:4] == ["acme", "chat", "active"]
    assert second.split()[:4] == [gone, "globex", "all", "revoked"]
    assert second.split()[-3:] == ["never", "never", "none"]


def test_an_empty_list_says_what_that_means(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert keys(config, "list") == 0
    assert capsys.readouterr().out.startswith("No keys: the gateway serves everybody")


def test_rotating_ends_the_old_secret(
    config: Path, store: KeyStore, capsys: pytest.CaptureFixture[str]
) -> None:
    old = created(config, capsys, "--tenant", "acme")
    assert keys(config, "rotate", old.split("-")[1]) == 0
    new = capsys.readouterr().out.strip()
    tenants = Tenants(store)
    assert tenants.authenticate(new).name == "acme"
    with pytest.raises(Unauthenticated):
        tenants.authenticate(old)


def test_revoking_takes_effect_in_a_gateway_that_runs(
    config: Path, store: KeyStore, capsys: pytest.CaptureFixture[str]
) -> None:
    text = created(config, capsys, "--tenant", "acme")
    tenants = Tenants(store)
    tenants.authenticate(text)
    assert keys(config, "revoke", text.split("-")[1]) == 0
    with pytest.raises(Unauthenticated, match="revoked"):
        tenants.authenticate(text)


def test_an_expired_key_is_refused(
    config: Path, store: KeyStore, capsys: pytest.CaptureFixture[str]
) -> None:
    text = created(config, capsys, "--tenant", "acme", "--expires", "12h")
    expires_s = store.list()[0].expires_s
    assert expires_s is not None
    with closing(KeyStore(store.path, clock=lambda: expires_s)) as later:
        with pytest.raises(Unauthenticated, match="expired"):
            Tenants(later).authenticate(text)


@pytest.mark.parametrize("span", ["0d", "30", "d", "1.5d", "-1d", "30y", "١d"])
def test_a_lifetime_that_makes_no_sense_is_wrong_usage(
    span: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        keys(config, "create", "--tenant", "acme", f"--expires={span}")
    assert ended.value.code == 2
    assert "is not like 90m, 12h, 30d or 8w" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["create", "--tenant", "acme", "--routes", "chta"], "no route 'chta'. Known: chat, extr"),
        (["create", "--tenant", ""], "tenant's name"),
        (["create", "--tenant", "acme", "--weight", "0"], "weight must be above 0"),
        (["rotate", "abc"], "no key 'abc'"),
        (["revoke", "abc"], "no key 'abc'"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], message: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert keys(config, *words) == 1
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_an_admin_key_is_made_and_shown_as_one(
    config: Path, store: KeyStore, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = created(config, capsys, "--tenant", "acme")
    admin = created(config, capsys, "--tenant", "acme", "--admin")
    tenants = Tenants(store)
    assert not tenants.authenticate(plain).admin
    assert tenants.authenticate(admin).admin
    keys(config, "list")
    assert capsys.readouterr().out.count("acme (admin)") == 1
