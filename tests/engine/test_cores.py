"""How many cores a process may use: what it is bound to, and what its control groups allow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.runner.cores import usable_cores


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


def files(root: Path, contents: dict[str, str]) -> Path:
    for name, text in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def test_affinity_without_control_groups(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == 8


def test_the_count_of_cores_where_there_is_no_affinity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert usable_cores(tmp_path) == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores(tmp_path) == 1


@pytest.mark.parametrize(
    ("limit", "cores"),
    [
        ("max 100000", 8),
        ("200000 100000", 2),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("25000 10000", 2),
        ("1600000 100000", 8),
        ("200000 0", 8),
        ("", 8),
        ("many", 8),
    ],
)
def test_version_2(limit: str, cores: int, tmp_path: Path) -> None:
    root = files(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": limit})
    assert usable_cores(root) == cores


def test_version_2_limits_hold_for_all_groups_below(tmp_path: Path) -> None:
    root = files(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user.slice/fewer.service",
            "sys/fs/cgroup/user.slice/cpu.max": "300000 100000",
            "sys/fs/cgroup/user.slice/fewer.service/cpu.max": "max 100000",
            "sys/fs/cgroup/other.slice/cpu.max": "100000 100000",
        },
    )
    assert usable_cores(root) == 3


@pytest.mark.parametrize("path", ["/", "/docker/0123abc"])
@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("400000", 4), ("10000", 1)])
def test_version_1(quota: str, cores: int, path: str, tmp_path: Path) -> None:
    """In a container its group is the root, whatever the machine calls it."""
    root = files(
        tmp_path,
        {
            "proc/self/cgroup": f"11:memory:/\n4:cpu,cpuacct:{path}\n2:cpuset:/\n1:name=systemd:/",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": quota,
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
        },
    )
    assert usable_cores(root) == cores
