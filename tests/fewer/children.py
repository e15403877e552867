"""Small processes for tests of those that start and end processes."""

from __future__ import annotations

import asyncio
import os
import sys

READY = "import os, sys, time; os.write(0, b'ready\\n');"
"""Says at once that it is ready, as the real ones do when they listen."""

WAIT_FOR_PARENT = "os.read(0, 1)"
"""Runs until the parent goes."""


def python(script: str) -> list[str]:
    """A command that starts in some ten milliseconds."""
    return [sys.executable, "-I", "-S", "-u", "-c", script]


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def gone(pid: int) -> None:
    """Wait until a process that is not our child has ended and was reaped."""
    async with asyncio.timeout(20):
        while True:
            if not exists(pid):
                return
            await asyncio.sleep(0.005)
