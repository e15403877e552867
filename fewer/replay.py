"""`fewer replay`: recorded traffic under another configuration, and what would change."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fewer import options

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gateway.config import Config
    from gateway.recorder.tally import PolicyTally, Result, RouteTally


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recording",
        type=Path,
        metavar="LOG",
        help="what `recorder` in fewer.yaml wrote; older files beside it are read too",
    )
    options.add_config(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(arguments: argparse.Namespace) -> int:
    import msgspec

    config = options.load_config(arguments)
    result = asyncio.run(replayed(config, arguments.recording))
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(result)).decode())
    else:
        _show(result)
    return 0


async def replayed(config: Config, path: Path) -> Result:
    """Raises `SetupError` when there is no such recording."""
    from gateway.recorder.reading import Recording
    from gateway.recorder.replay import Replay

    recording, replay = Recording(path), Replay(config)
    for line in recording:
        await replay.add(line)
    return replay.result(recording.unreadable)


def _show(result: Result) -> None:
    from rich.console import Console

    # In a pipe every row stays on one line, for grep and awk.
    width = None if sys.stdout.isatty() else 200
    console = Console(highlight=False, markup=False, width=width)
    lost = f"; {result.unreadable:,} lines are no records of any" if result.unreadable else ""
    console.print(f"{result.requests:,} requests{lost}")
    for route in result.routes:
        _print(console, _route_table(route))
    if result.policies:
        _print(console, _policy_table(result.policies))
    for each in result.missing:
        console.print(f"not replayed: {each.policy} of {each.route}: it {each.reason}")
    for name, count in result.unknown.items():
        console.print(f"not replayed: {count:,} requests of {name}: there is no such route")
    if any(route.replayed.open_ended for route in result.routes):
        console.print("open-ended answers were cut in the recording and would go on: more tokens")


def _print(console: Console, table: Table) -> None:
    console.print()
    console.print(table)


def _route_table(tally: RouteTally) -> Table:
    from rich.table import Table

    names = ("recorded", "replayed", "change")
    table = Table(f"ROUTE {tally.route}: {tally.requests:,} REQUESTS", box=None)
    for name in names:
        table.add_column(name.upper(), justify="right")
    for title, field in (
        ("answers that a model makes", "generations"),
        ("prompt tokens, by estimate", "prompt_tokens"),
        ("completion tokens, at most", "completion_tokens"),
        ("from the cache", "hits"),
        ("joined", "joined"),
        ("answered by a policy", "answered"),
        ("refused by a policy", "refused"),
        ("shorter by their limit", "cut_short"),
        ("open-ended", "open_ended"),
    ):
        before, after = getattr(tally.recorded, field), getattr(tally.replayed, field)
        if before or after:
            table.add_row(title, f"{before:,}", f"{after:,}", _change(before, after))
    return table


def _change(before: int, after: int) -> str:
    return f"{(after - before) / before:+.1%}" if before else ""


def _policy_table(tallies: list[PolicyTally]) -> Table:
    from rich.table import Table

    table = Table("ROUTE", "POLICY", "MODE", box=None)
    for name in (
        "ASKED",
        "HELD OUT",
        "RECORDED",
        "TOUCHED",
        "REFUSED",
        "PROMPT",
        "LIMIT",
        "REUSED",
    ):
        table.add_column(name, justify="right")
    for each in tallies:
        counts = (each.requests, each.held_out, each.recorded, each.touched, each.refused)
        table.add_row(
            each.route,
            each.policy,
            each.mode,
            *(f"{count:,}" for count in counts),
            _from_to(each.prompt_before, each.prompt_after),
            _from_to(each.asked_tokens, each.allowed_tokens),
            f"{each.reused:,}",
        )
    return table


def _from_to(before: int, after: int) -> str:
    return f"{before:,} to {after:,}" if before else ""
