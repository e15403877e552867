"""Limits in `fewer.yaml`: what is read, what is wrong, and what holds without a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.protocol.errors import ConfigError
from gateway.budgets.limits import Limits
from gateway.changes import applicable
from gateway.config import Config, LimitsConfig, Secret, load
from tests.fakes.serving import scripted_config

GOOD = """
limits:
  store: ${STORE:-memory}
  when_away: closed
  each_tenant: {requests_per_minute: 60, tokens_per_minute: 20000}
models:
  small: {openai: "http://127.0.0.1:1/v1", price: {input: 1}, fallback: [large]}
  large: {openai: "http://127.0.0.1:1/v1"}
  paid: {openai: "http://127.0.0.1:1/v1", price: {input: 1}}
routes:
  chat: {model: small, limits: {budget_tokens: 5000000, period: day}}
"""


def loaded(folder: Path, text: str, **environ: str) -> Config:
    path = folder / "fewer.yaml"
    path.write_text(text)
    return load(path, {"HOME": str(folder), **environ})


def test_limits_are_read(tmp_path: Path) -> None:
    config = loaded(tmp_path, GOOD)
    assert config.limits.each_tenant == Limits(60, 20_000)
    assert (config.limits.store, config.limits.when_away) == (Secret("memory"), "closed")
    assert config.routes["chat"].limits == Limits(budget_tokens=5_000_000, period="day")
    address = "redis://:secret@10.0.0.1:6379/0"
    assert "secret" not in repr(loaded(tmp_path, GOOD, STORE=address))


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("${STORE:-memory}", "postgres://x", "limits.store: must be memory, sqlite or redis"),
        ("closed", "ignore", "limits.when_away: must be one of open, closed, local"),
        ("each_tenant", "each_key", "limits.each_key: unknown key"),
        ("20000", "0", "limits.each_tenant.tokens_per_minute: must be a whole number >= 1"),
        ("20000", "1.5", "tokens_per_minute: must be a whole number"),
        ("day", "week", "routes.chat.limits.period: must be one of day, month, total"),
        ("budget_tokens: 5000000", "budget_dollars: .inf", "budget_dollars: must be"),
        ("budget_tokens: 5000000", "budget_dollars: 0", "budget_dollars: must be"),
        (
            "budget_tokens: 5000000",
            "budget_dollars: 5",
            "routes.chat.limits.budget_dollars: needs a price of the model large",
        ),
        (
            "small, limits: {budget_tokens: 5000000",
            "paid, route: {weak: large, strong: paid, cascade: {}}, limits: {budget_dollars: 5",
            "routes.chat.limits.budget_dollars: needs a price of the model large",
        ),
        (
            "requests_per_minute: 60",
            "budget_dollars: 5",
            "limits.each_tenant.budget_dollars: needs a price of the model large",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(
    tmp_path: Path, before: str, after: str, told: str
) -> None:
    assert before in GOOD
    with pytest.raises(ConfigError, match=r"fewer\.yaml:[0-9]+:") as wrong:
        loaded(tmp_path, GOOD.replace(before, after, 1))
    assert told in wrong.value.message


def test_the_store_waits_for_a_restart_and_limits_do_not() -> None:
    first = scripted_config()
    wanted = replace(
        first,
        limits=LimitsConfig(Secret("redis://elsewhere"), 50, "open", Limits(requests_per_minute=1)),
    )
    found = applicable(wanted, first, first)
    assert found.postponed == ["limits.store", "limits.deadline_ms"]
    kept = LimitsConfig(when_away="open", each_tenant=Limits(requests_per_minute=1))
    assert found.config.limits == kept
