"""`fewer keys`: create, list, limit, rotate and revoke the keys that clients present."""

from __future__ import annotations

import argparse
import re
import sys
from contextlib import closing
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from engine.protocol.errors import SetupError
from fewer import key_limits, options

if TYPE_CHECKING:
    from gateway.config import Config
    from gateway.stores.keys import Key, KeyStore, NewKey

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SPAN = re.compile(r"([0-9]{1,5})([mhdw])")


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = options.add_action(actions, "create", "make a key and print it, once")
    create.add_argument("--tenant", required=True, metavar="NAME", help="whose key it is")
    create.add_argument("--routes", metavar="A,B", help="routes it may use (default: all)")
    create.add_argument(
        "--expires", type=lifetime, metavar="30d", help="minutes, hours, days or weeks from now"
    )
    create.add_argument(
        "--weight",
        type=float,
        default=1.0,
        help="share of a busy engine, relative to other tenants (default: %(default)s)",
    )
    create.add_argument(
        "--admin",
        action="store_true",
        help="it may read the ledger, which names every tenant, and change keys and limits",
    )
    key_limits.add_limits(create)
    listing = options.add_action(actions, "list", "show all keys; never their secrets")
    usage = options.add_action(actions, "usage", "show every limit, and how far it is used")
    limit = options.add_action(
        actions, "limit", "set what a key or a tenant may use; without limits, lift them"
    )
    key_limits.add_subject(limit)
    key_limits.add_limits(limit)
    rotate = options.add_action(actions, "rotate", "give a key a new secret; the old one ends now")
    revoke = options.add_action(actions, "revoke", "refuse a key from now on")
    for one in (rotate, revoke):
        one.add_argument("id", metavar="ID", help="as `fewer keys list` shows it")
    for action in (create, listing, usage, limit, rotate, revoke):
        options.add_config(action)


def run(arguments: argparse.Namespace) -> int:
    from gateway.stores.keys import KeyStore

    config = options.load_config(arguments)
    with closing(KeyStore(config.store)) as store:
        if arguments.action == "create":
            _create(arguments, config, store)
        elif arguments.action == "rotate":
            _show_once(store.rotate(arguments.id))
        elif arguments.action == "revoke":
            key = store.revoke(arguments.id)
            print(f"Revoked {key.id} of {key.tenant}: it is refused from now on.")
        elif arguments.action == "limit":
            key_limits.limit(arguments, config, store)
        elif arguments.action == "usage":
            key_limits.show_usage(config, store)
        else:
            _list(store)
    return 0


def lifetime(text: str) -> timedelta:
    """`90m`, `12h`, `30d` or `8w`, as argparse wants a type to be."""
    found = _SPAN.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 90m, 12h, 30d or 8w")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def _create(arguments: argparse.Namespace, config: Config, store: KeyStore) -> None:
    routes = _routes(arguments.routes, config)
    expires_s = None
    if arguments.expires is not None:
        expires_s = store.clock() + arguments.expires.total_seconds()
    first, limits = store.is_empty(), key_limits.limits_of(arguments)
    _show_once(
        store.create(
            arguments.tenant,
            routes=routes,
            weight=arguments.weight,
            expires_s=expires_s,
            admin=arguments.admin,
            limits=limits,
        )
    )
    key_limits.warn_of_free_models(limits, config)
    if first:
        print("This is the first key: from now on every request needs one.", file=sys.stderr)


def _routes(text: str | None, config: Config) -> list[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in config.routes:
            known = ", ".join(config.routes) or "none"
            raise SetupError(f"There is no route {name!r}. Known: {known}.")
    return names


def _show_once(new: NewKey) -> None:
    """The key alone on standard output, so that a script can take it."""
    print(
        f"Key {new.key.id} of {new.key.tenant}. It is shown only now; keep it safe:",
        file=sys.stderr,
        flush=True,
    )
    print(new.text)


def _list(store: KeyStore) -> None:
    from rich.console import Console
    from rich.table import Table

    keys = store.list()
    if not keys:
        print("No keys: the gateway serves everybody, on this machine alone.")
        return
    table = Table(
        "ID", "TENANT", "ROUTES", "STATE", "CREATED", "EXPIRES", "USED", "LIMITS", box=None
    )
    for key in keys:
        state = key.state(store.clock())
        table.add_row(*_cells(key, state), style=None if state == "active" else "dim")
    # In a pipe every row stays on one line, for grep and awk.
    width = None if sys.stdout.isatty() else 1000
    Console(highlight=False, markup=False, width=width).print(table)


def _cells(key: Key, state: str) -> list[str]:
    routes = "all" if key.routes is None else ",".join(key.routes)
    tenant = f"{key.tenant} (admin)" if key.admin else key.tenant
    times = [_day(key.created_s), _day(key.expires_s), _day(key.last_used_s)]
    return [key.id, tenant, routes, state, *times, str(key.limits or "none")]


def _day(time_s: float | None) -> str:
    return "never" if time_s is None else f"{datetime.fromtimestamp(time_s):%Y-%m-%d %H:%M}"
