"""Small processes for tests of those that start and end processes."""

from __future__ import annotations

import os
import select
import sys

READY = "import os, sys, time; os.write(0, b'ready\\n');"
"""Says at once that it is ready, as the real ones do when they listen."""

WAIT_FOR_PARENT = "os.read(0, 1)"
"""Runs until the parent goes."""


def python(script: str) -> list[str]:
    """A command that starts in some ten milliseconds."""
    return [sys.executable, "-I", "-S", "-u", "-c", script]


def wait_gone(pid: int, deadline_s: float = 20.0) -> None:
    """Wait until a process has ended, one that is not our child too."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended, _, _ = select.select([handle], [], [], deadline_s)
    finally:
        os.close(handle)
    assert ended, f"process {pid} still runs"
