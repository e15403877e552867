"""What keys and tenants may use, on the command line."""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.protocol.errors import SetupError

if TYPE_CHECKING:
    from gateway.budgets.claims import Standing
    from gateway.budgets.limits import Limits, Subject
    from gateway.config import Config
    from gateway.stores.keys import KeyStore

_FIELDS = {
    "requests_per_minute": ("N", "requests within any 60 seconds"),
    "tokens_per_minute": ("N", "tokens within any 60 seconds, prompt and output together"),
    "budget_tokens": ("N", "tokens for each period"),
    "budget_dollars": ("X", "dollars for each period, by the models' prices"),
}
_PERIODS = ("day", "month", "total")


def add_limits(parser: argparse.ArgumentParser) -> None:
    for name, (metavar, meaning) in _FIELDS.items():
        kind = float if name == "budget_dollars" else int
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=kind, metavar=metavar, help=meaning)
    parser.add_argument(
        "--period",
        choices=_PERIODS,
        default="month",
        help="of budgets, in UTC; total: once and for all (default: %(default)s)",
    )


def add_subject(parser: argparse.ArgumentParser) -> None:
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument("id", nargs="?", metavar="ID", help="a key, as `fewer keys list` shows it")
    whose.add_argument("--tenant", metavar="NAME", help="all keys of a tenant together")


def limits_of(arguments: argparse.Namespace) -> Limits | None:
    """What was given; None for nothing. Raises `SetupError` for what is out of range."""
    import msgspec

    from gateway.budgets.limits import Limits

    given = {name: getattr(arguments, name) for name in _FIELDS}
    try:
        limits = msgspec.convert(given | {"period": arguments.period}, Limits)
    except msgspec.ValidationError as error:
        raise SetupError(f"These are no limits: {error}.") from None
    return limits if limits.given else None


def warn_of_free_models(limits: Limits | None, config: Config) -> None:
    """What they answer takes nothing of a budget of dollars."""
    free = [name for name, model in config.models.items() if model.price is None]
    if limits is not None and limits.budget_dollars is not None and free:
        print(
            f"These models have no price and cost none of it: {', '.join(free)}.", file=sys.stderr
        )


def limit(arguments: argparse.Namespace, config: Config, store: KeyStore) -> None:
    limits = limits_of(arguments)
    if arguments.tenant is not None:
        store.limit_tenant(arguments.tenant, limits)
    else:
        store.limit(arguments.id, limits)
    whose = f"tenant {arguments.tenant}" if arguments.tenant else f"key {arguments.id}"
    print(f"The {whose} may use from now on: {limits or 'what it likes'}.")
    warn_of_free_models(limits, config)


def show_usage(config: Config, store: KeyStore) -> None:
    from gateway.budgets.usage import limited

    subjects = limited(config, store)
    if not subjects:
        print("Nothing is limited.")
        return
    if config.limits.store.reveal() == "memory":
        raise SetupError(
            "limits.store is memory: only the gateway knows. Ask its GET /v1/admin/usage."
        )
    from rich.console import Console
    from rich.table import Table

    table = Table("OF", "NAME", "LIMIT", "USED", "LEFT", "ALL AGAIN IN", box=None)
    for standing in asyncio.run(_standings(config, subjects)):
        table.add_row(*_cells(standing))
    width = None if sys.stdout.isatty() else 1000
    Console(highlight=False, markup=False, width=width).print(table)


async def _standings(config: Config, subjects: list[Subject]) -> Sequence[Standing]:
    from gateway.budgets.stores import store_of
    from gateway.budgets.usage import standings

    store = store_of(config)
    try:
        return await standings(store, subjects, time.time())
    finally:
        await store.aclose()


def _cells(standing: Standing) -> list[str]:
    from gateway.budgets.limits import shown

    claim = standing.claim
    amounts = [claim.take.limit, standing.state.used, standing.remaining]
    limit, used, left = (shown(claim.field, amount) for amount in amounts)
    again = until(standing.reset_s)
    return [claim.subject.kind, claim.subject.name, f"{claim.field} {limit}", used, left, again]


def until(seconds: float) -> str:
    """For a person: in days and hours once it is more than a day."""
    from gateway.budgets.headers import duration

    if math.isinf(seconds):
        return "never"
    hours = math.ceil(seconds / 3600)
    return duration(math.ceil(seconds)) if hours <= 24 else f"{hours // 24}d{hours % 24}h"
