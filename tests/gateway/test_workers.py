"""The parent of several workers, with workers that are only numbers."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.supervisors import multiprocess

from gateway import server
from gateway.config import load
from gateway.reload import Live
from gateway.source import Source

TEXT = "models: {one: {openai: 'http://127.0.0.1:1/v1'}}\nroutes: {chat: {model: one}}\n"


class Worker:
    """pid of a process that is not there, unless it says otherwise."""

    def __init__(self, pid: int, ready: bool = True) -> None:
        self.pid = pid
        self.ready = ready

    def wait_until_ready(self, timeout: float, stop: threading.Event) -> bool:
        return self.ready

    def is_alive(self, timeout: float) -> bool:
        return True


class Parent:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "fewer.yaml"
        self.path.write_text(TEXT)
        source = Source(self.path, partial(load, self.path, {"HOME": "/nowhere"}))
        self.live = Live(source.load(), source)
        self.ready = 0
        settings = uvicorn.Config("unused", workers=1)
        self.workers = server._Workers(settings, [], self.live, self.on_ready)
        self.workers.processes_num = 0

    def on_ready(self) -> None:
        self.ready += 1

    def employ(self, *workers: Any) -> None:
        self.workers.processes = list(workers)


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parent]:
    before = {number: signal.getsignal(number) for number in multiprocess.SIGNALS}
    monkeypatch.setattr(os, "isatty", lambda descriptor: False)
    yield Parent(tmp_path)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Signals that were sent; the processes below 100 have just died."""
    sent: list[tuple[int, int]] = []

    def kill(pid: int, number: int) -> None:
        if pid < 100:
            raise ProcessLookupError
        sent.append((pid, number))

    monkeypatch.setattr(os, "kill", kill)
    return sent


@pytest.mark.parametrize("ready", [True, False])
def test_it_is_ready_when_all_are(parent: Parent, ready: bool) -> None:
    parent.employ(Worker(101), Worker(102, ready))
    parent.workers.init_processes()
    assert parent.ready == int(ready)


def test_a_hangup_goes_on_to_every_worker_that_is_there(
    parent: Parent, told: list[tuple[int, int]]
) -> None:
    parent.employ(Worker(101), Worker(1), Worker(102))
    parent.workers.handle_hup()
    assert told == [(101, signal.SIGHUP), (102, signal.SIGHUP)]


def test_a_changed_file_is_noticed_by_the_parent(
    parent: Parent, told: list[tuple[int, int]]
) -> None:
    parent.employ(Worker(101))
    parent.workers.keep_subprocess_alive()
    assert told == []
    parent.path.write_text(TEXT.replace("chat", "talk"))
    parent.workers.keep_subprocess_alive()
    parent.workers.keep_subprocess_alive()
    assert told == [(101, signal.SIGHUP)]
    assert list(parent.live.config.routes) == ["talk"]


def test_a_wrong_file_reaches_no_worker(
    parent: Parent, told: list[tuple[int, int]], caplog: pytest.LogCaptureFixture
) -> None:
    parent.employ(Worker(101))
    parent.path.write_text(TEXT.replace("routes", "rutes"))
    with caplog.at_level(logging.ERROR, "fewer.reload"):
        parent.workers.handle_hup()
    assert told == []
    assert list(parent.live.config.routes) == ["chat"]
    (line,) = caplog.messages
    assert line.startswith("fewer.yaml:2:rutes: unknown key. Did you mean routes?")


def test_a_terminal_that_goes_ends_all(
    parent: Parent, told: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "isatty", lambda descriptor: True)
    parent.employ(Worker(101))
    parent.workers.handle_hup()
    assert parent.workers.should_exit.is_set()
    assert told == []
