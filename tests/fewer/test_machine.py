from __future__ import annotations

from pathlib import Path

import pytest

from fewer.machine import free_memory_bytes, this_machine


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    return tmp_path


def container(root: Path, limit: str, used: int) -> None:
    (root / "sys/fs/cgroup/memory.max").write_text(f"{limit}\n")
    (root / "sys/fs/cgroup/memory.current").write_text(f"{used}\n")


def test_what_the_kernel_calls_available(root: Path) -> None:
    assert free_memory_bytes(root) == 4000 * 1024


def test_a_container_may_have_less(root: Path) -> None:
    container(root, "3000000", 1000000)
    assert free_memory_bytes(root) == 2000000
    container(root, "3000000", 3500000)
    assert free_memory_bytes(root) == 0


def test_a_container_without_a_limit_has_what_the_machine_has(root: Path) -> None:
    container(root, "max", 1000000)
    assert free_memory_bytes(root) == 4000 * 1024


def test_an_old_kernel_that_does_not_tell(root: Path) -> None:
    (root / "proc/meminfo").write_text("MemTotal: 9000 kB\n")
    assert free_memory_bytes(root) > 1 << 28


def test_elsewhere_all_memory_counts(tmp_path: Path) -> None:
    assert free_memory_bytes(tmp_path) > 1 << 28


def test_this_machine_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """All the cores that a process may use, from one of them: two runs differ by their number."""
    monkeypatch.setattr("fewer.machine.usable_cores", lambda: 1)
    one_core = this_machine().peak_flops
    monkeypatch.setattr("fewer.machine.usable_cores", lambda: 100)
    machine = this_machine()
    assert machine.memory_bytes > 0
    assert machine.peak_flops is not None
    assert machine.bandwidth_bytes_s is not None
    assert one_core is not None
    assert machine.peak_flops > 10 * one_core > 1e8
    assert machine.bandwidth_bytes_s > 1e8
