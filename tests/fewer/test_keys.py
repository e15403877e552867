from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from engine.protocol.errors import Unauthenticated
from fewer import key_limits
from fewer.main import main
from gateway.budgets.limits import Limits
from gateway.stores.budget import Take
from gateway.stores.budget_sqlite import SqliteBudgetStore
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
        (["create", "--tenant", "acme", "--weight", "0"], "weight must be a number above 0"),
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


LIMITS = ("--requests-per-minute", "60", "--budget-dollars", "2.5", "--period", "day")


def test_limits_are_given_changed_shown_and_lifted(
    config: Path, store: KeyStore, capsys: pytest.CaptureFixture[str]
) -> None:
    id = created(config, capsys, "--tenant", "acme", *LIMITS).split("-")[1]
    assert store.list()[0].limits == Limits(60, None, None, 2.5, "day")
    assert keys(config, "limit", id, *LIMITS) == 0
    assert "no price and cost none of it: small" in capsys.readouterr().err
    assert keys(config, "list") == 0
    assert "60 requests/min, $2.5/day" in capsys.readouterr().out
    assert keys(config, "limit", id, "--budget-tokens", "5000000") == 0
    told = capsys.readouterr().out
    assert told == f"The key {id} may use from now on: 5,000,000 tokens/month.\n"
    assert keys(config, "limit", "--tenant", "acme", "--tokens-per-minute", "1000") == 0
    assert store.tenants() == {"acme": Limits(tokens_per_minute=1000)}
    assert keys(config, "limit", id) == 0
    assert store.list()[0].limits is None
    assert "what it likes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("limit", "nope"), "no key 'nope'"),
        (("limit", "--tenant", "nope"), "no tenant 'nope'"),
        (("limit", "ID", "--budget-tokens", "0"), ">= 1"),
        (("limit", "ID", "--budget-dollars", "nan"), ">= 1e-09"),
        (("create", "--tenant", "acme", "--requests-per-minute", "-1"), ">= 1"),
    ],
)
def test_senseless_limits_are_refused(
    config: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    id = created(config, capsys, "--tenant", "acme").split("-")[1]
    assert keys(config, *(word.replace("ID", id) for word in words)) != 0
    assert told in capsys.readouterr().err


def test_usage_is_read_from_the_store(
    config: Path, store: KeyStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert keys(config, "usage") == 0
    assert capsys.readouterr().out == "Nothing is limited.\n"
    id = created(config, capsys, "--tenant", "acme", *LIMITS).split("-")[1]
    take = Take(f"requests_per_minute:key:{id}", 7, 60, windowed=True)
    budgets = SqliteBudgetStore(config.with_name("keys.budgets.sqlite3"), deadline_s=5)
    asyncio.run(spend(budgets, take))
    assert keys(config, "usage") == 0
    title, requests, dollars = capsys.readouterr().out.splitlines()
    assert title.split() == ["OF", "NAME", "LIMIT", "USED", "LEFT", "ALL", "AGAIN", "IN"]
    assert requests.split()[:6] == ["key", id, "requests_per_minute", "60", "7", "53"]
    assert dollars.split()[:6] == ["key", id, "budget_dollars", "$2.5", "$0", "$2.5"]
    config.write_text(CONFIG + "limits: {store: memory}\n")
    assert keys(config, "usage") != 0
    assert "GET /v1/admin/usage" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0, "0s"), (59.2, "1m0s"), (86_400, "24h0m0s"), (86_401, "1d1h"), (math.inf, "never")],
)
def test_how_long_until_all_is_there_again(seconds: float, told: str) -> None:
    assert key_limits.until(seconds) == told


async def spend(budgets: SqliteBudgetStore, take: Take) -> None:
    assert (await budgets.reserve("lease", [take], 60)).granted
    await budgets.aclose()
