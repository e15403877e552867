"""A server in processes of its own, whose output is kept in case it does not come up."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks import processes

READY_DEADLINE_S = 120.0
LOG_TAIL_BYTES = 2_000


class StartError(Exception):
    """A server did not come up; the message ends with what it last said."""


@contextmanager
def started(
    command: Sequence[str], log: Path, environ: Mapping[str, str], folder: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Its output goes to `log`; whatever is left of it when the block is left is killed.

    folder: to run it in; None is this process's
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | dict(environ),
        )
    try:
        yield process
    finally:
        processes.kill(process.pid)
        process.wait()


def wait_until_up(
    name: str,
    process: subprocess.Popen[bytes],
    log: Path,
    is_up: Callable[[], bool],
    poll_s: float,
) -> None:
    """Raises `StartError` when it has ended, or is not up by the deadline."""
    began = time.monotonic()
    while not is_up():
        if process.poll() is not None or time.monotonic() - began > READY_DEADLINE_S:
            raise StartError(f"{name} did not come up:\n{said(log)}")
        time.sleep(poll_s)


def said(log: Path) -> str:
    """The end of what it has said."""
    return log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
