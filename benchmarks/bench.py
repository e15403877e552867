"""What every measurement gets, and what it gives back."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from benchmarks.client import Client
from benchmarks.figures import Row
from benchmarks.prompts import Prompts


@dataclass(frozen=True, slots=True)
class Bench:
    """repeats: of short measurements; seconds: that each phase of a load lasts"""

    client: Client
    prompts: Prompts
    repeats: int
    seconds: float


Measure = Callable[[Bench], Awaitable[list[Row]]]


@dataclass(frozen=True, slots=True)
class Work:
    """A measurement by name. meaning: one line for the reader of its table"""

    name: str
    meaning: str
    measure: Measure


def end_in_order() -> None:
    """Let SIGTERM unwind the program, as Ctrl-C does, so that what it has started ends too."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def say(line: str) -> None:
    """Progress, where it does not mix with the figures."""
    print(f"bench: {line}", file=sys.stderr, flush=True)
