"""Memory and CPU time of a process with all it has started, and a way to hold it still."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SETTLE_S, IDLE_WATCH_S = 0.5, 0.5
"""What is left to do after an answer is not held against it."""
IDLE_SHARE = 0.05
"""Of one core. Above it, a process that has nothing to do is in the way of others."""


def tree(pid: int) -> list[int]:
    """The process and everything below it, parents first. Empty when it has ended."""
    children: dict[int, list[int]] = {}
    for folder in PROC.glob("[0-9]*"):
        # Skipped: a process that ended since it was listed.
        with contextlib.suppress(OSError):
            children.setdefault(int(_stat(int(folder.name))[1]), []).append(int(folder.name))
    found = [pid] if (PROC / str(pid)).exists() else []
    for one in found:  # grows while it is walked
        found += children.get(one, [])
    return found


def resident_mb(pid: int) -> float:
    """Resident memory of the tree now, in MiB; a page that several share counts for each."""
    return _memory_mb(pid, "VmRSS")


def peak_mb(pid: int) -> float:
    """The most that each of the tree's processes ever had, added up, in MiB."""
    return _memory_mb(pid, "VmHWM")


def cpu_s(pid: int) -> float:
    """CPU time that the tree has used."""
    total = 0
    for one in tree(pid):
        with contextlib.suppress(OSError):
            total += sum(map(int, _stat(one)[11:13]))
    return total / TICKS_PER_S


def spins(pid: int) -> bool:
    """Whether the tree, left alone, uses CPU all the same."""
    time.sleep(SETTLE_S)
    before_s = cpu_s(pid)
    time.sleep(IDLE_WATCH_S)
    return cpu_s(pid) - before_s > IDLE_SHARE * IDLE_WATCH_S


def pause(pid: int) -> None:
    _signal(tree(pid), signal.SIGSTOP)


def resume(pid: int) -> None:
    _signal(tree(pid), signal.SIGCONT)


def kill(pid: int) -> None:
    """End the whole tree at once, paused or not."""
    _signal(tree(pid), signal.SIGKILL)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _memory_mb(pid: int, name: str) -> float:
    return round(sum(_kilobytes(pid, name)) / 1024, 1)


def _kilobytes(pid: int, name: str) -> Iterator[int]:
    for one in tree(pid):
        with contextlib.suppress(OSError):
            for line in (PROC / str(one) / "status").read_text().splitlines():
                if line.startswith(f"{name}:"):
                    yield int(line.split()[1])


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on: behind the name, which may hold anything."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
