"""How many threads an executor takes where the settings leave it to the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def usable_cores(root: Path = Path("/")) -> int:
    """Those this process may use: its affinity, and its control groups' quota if that is less.

    Rounded down, to one at least: with a thread more than the quota pays for, all of a step's
    threads wait for the one that is held up until the next period.

    root: of the file system that holds /proc and /sys
    """
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return max(1, min([cores, *(int(quota) for quota in _quotas(root))]))


def _quotas(root: Path) -> Iterator[float]:
    """Cores that each of the process's control groups allows, version 2 and 1."""
    for folder in _groups(root):
        quota, period = _words(folder / "cpu.max", 2)
        if not quota:
            (quota,) = _words(folder / "cpu.cfs_quota_us", 1)
            (period,) = _words(folder / "cpu.cfs_period_us", 1)
        if quota.isdigit() and period.isdigit() and int(period) > 0:  # not "max", not -1
            yield int(quota) / int(period)


def _groups(root: Path) -> Iterator[Path]:
    """Folders of the process's groups and of all above them: a limit holds for all below.

    Lines are `id:controllers:path` (cgroups(7)); version 2 has no controllers. In a container
    the path may be the machine's, and not there: the container's own group is then the root.
    """
    base = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        mounted = base if not controllers else base / controllers
        if not controllers or "cpu" in controllers.split(","):
            group = PurePosixPath(path)
            for folder in (group, *group.parents):
                yield mounted / folder.relative_to(folder.anchor)


def _words(path: Path, count: int) -> list[str]:
    return [*_text(path).split(), *[""] * count][:count]


def _text(path: Path) -> str:
    """Empty where it cannot be read: then it limits nothing."""
    try:
        return path.read_text()
    except OSError:
        return ""
