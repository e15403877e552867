from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from fewer.lifeline import READY

CHILD = """
import signal
from fewer.lifeline import Lifeline
line = Lifeline()
line.ready()
signal.sigwait([signal.SIGUSR1])
"""
REPOSITORY = Path(__file__).parents[2]


def start(script: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=theirs.fileno(),
            start_new_session=True,
            cwd=REPOSITORY,
        )
    return process, ours


def test_the_child_says_that_it_is_ready() -> None:
    process, line = start(CHILD)
    with process, line:
        assert line.recv(64) == READY
        os.kill(process.pid, signal.SIGKILL)


def test_a_child_ends_when_its_parent_goes() -> None:
    process, line = start(CHILD)
    with process:
        assert line.recv(64) == READY
        line.close()
        assert process.wait(timeout=20) == -signal.SIGTERM


def test_an_orphan_that_will_not_end_is_ended_with_all_of_its_own() -> None:
    stubborn = (
        "import signal, os, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "from fewer import lifeline\n"
        "lifeline.ORPHAN_GRACE_S = 0.05\n"
        "reading, writing = os.pipe()\n"
        "if os.fork() == 0: time.sleep(60)\n"
        "lifeline.Lifeline().ready()\n"
        "time.sleep(60)\n"
    )
    process, line = start(stubborn)
    with process:
        assert line.recv(64) == READY
        line.close()
        assert process.wait(timeout=20) == -signal.SIGKILL


def test_saying_ready_to_nobody_is_no_error() -> None:
    process, line = start(f"import os; os.read(0, 1)\n{CHILD}")
    with process:
        line.close()
        assert process.wait(timeout=20) == -signal.SIGTERM
