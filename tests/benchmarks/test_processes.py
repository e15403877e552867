from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import processes
from benchmarks.interference import busy_process

INNER = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
SCRIPT = f"""
import subprocess, sys
command = [sys.executable, "-I", "-S", "-c", {INNER!r}]
subprocess.Popen(command, stdin=subprocess.PIPE).wait()
"""


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """A process that waits, and one that it has started."""
    command = [sys.executable, "-I", "-S", "-c", SCRIPT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        processes.kill(process.pid)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_tree_holds_what_was_started_below(family: tuple[int, int]) -> None:
    assert tuple(processes.tree(family[0])) == family


def test_a_process_that_has_ended_has_no_tree() -> None:
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    process.wait()
    assert processes.tree(process.pid) == []
    assert processes.resident_mb(process.pid) == 0


def test_memory_is_that_of_the_whole_tree(family: tuple[int, int]) -> None:
    outer, inner = family
    assert processes.resident_mb(outer) > processes.resident_mb(inner) > 1
    now_mb = processes.resident_mb(outer)
    assert processes.peak_mb(outer) >= now_mb


def test_a_tree_is_held_still_and_let_go(family: tuple[int, int]) -> None:
    processes.pause(family[0])
    os.waitid(os.P_PID, family[0], os.WSTOPPED | os.WNOWAIT)
    assert state(family[0]) == "T"
    processes.resume(family[0])
    assert state(family[0]) != "T"


def test_only_a_process_that_works_spins(family: tuple[int, int]) -> None:
    assert not processes.spins(family[0])
    with busy_process():
        assert processes.spins(os.getpid())
