"""What this machine has: free memory, and how fast it computes and reads, measured in a blink."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

from engine.fit import Machine
from engine.runner.cores import usable_cores

_PROBE_WIDTH = 96
"""Small enough that numpy's library keeps to one core: threads that wait for one another on a
busy machine would measure the waiting."""
_PROBE_BYTES = 64 * 1024 * 1024
_PROBE_S = 0.1


def this_machine() -> Machine:
    """Free memory, and peaks in float32 measured with numpy (about a quarter of a second)."""
    name = f"{platform.node()} ({os.cpu_count()} CPUs)"
    return Machine(name, free_memory_bytes(), _bandwidth_bytes_s(), _peak_flops())


def free_memory_bytes(root: Path = Path("/")) -> int:
    """What a new process may take: of the machine, and of its container if that allows less.

    root: of the file system that holds /proc and /sys
    """
    free = _machine_bytes(root / "proc/meminfo")
    limit = _number(root / "sys/fs/cgroup/memory.max")
    used = _number(root / "sys/fs/cgroup/memory.current")
    if limit is not None and used is not None:
        free = min(free, max(0, limit - used))
    return free


def _machine_bytes(meminfo: Path) -> int:
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # no Linux: all of the memory is the best that can be told
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no control group, or its limit is the word `max`
        return None


def _peak_flops() -> float:
    import numpy as np

    square = np.ones((_PROBE_WIDTH, _PROBE_WIDTH), np.float32)
    product = np.empty_like(square)
    one_core = 2 * _PROBE_WIDTH**3 / _best_s(lambda: np.matmul(square, square, out=product))
    return one_core * usable_cores()


def _bandwidth_bytes_s() -> float:
    import numpy as np

    source = np.ones(_PROBE_BYTES // 4, np.float32)
    target = np.empty_like(source)
    return 2 * _PROBE_BYTES / _best_s(lambda: np.copyto(target, source))


def _best_s(work: Callable[[], object]) -> float:
    """The quickest of some runs: the others shared the machine with somebody."""
    best, begun = math.inf, time.perf_counter()
    while True:
        start = time.perf_counter()
        work()
        now = time.perf_counter()
        best = min(best, now - start)
        if now - begun > _PROBE_S:
            return best
