"""The engine stops or dies under load: the gateway says so, and the service comes back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from urllib.error import HTTPError

import pytest

from tests.e2e.stack import Stack, wait_for

pytestmark = pytest.mark.model


@contextmanager
def nobody_restarts(stack: Stack) -> Iterator[None]:
    """Meanwhile `fewer serve` stands still, so that what is down stays down."""
    stack.service.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        stack.service.process.send_signal(signal.SIGCONT)


def test_an_engine_that_is_killed_comes_back_without_help(stack: Stack) -> None:
    """B53, by SIGKILL, during three streams and two requests that wait."""
    streams = [stack.stream("Tell a long story.", max_tokens=200) for _ in range(3)]
    for stream in streams:
        assert "error" not in next(stream)
    queued: list[HTTPError | None] = []
    waiting = [Thread(target=lambda: queued.append(stack.refused())) for _ in range(2)]
    for thread in waiting:
        thread.start()
    with nobody_restarts(stack):
        os.kill(stack.service.child("engine"), signal.SIGKILL)
        for stream in streams:
            *_, last = stream
            assert last["error"]["code"] in ("unavailable", "upstream_failed")
        for thread in waiting:
            thread.join()
        for refusal in (stack.refused(), *(refusal for refusal in queued if refusal)):
            assert refusal is not None
            assert refusal.code == 503
            assert int(refusal.headers["retry-after"]) >= 1
        assert not stack.is_ready()
    wait_for(stack.is_ready, "the service to come back")
    assert stack.refused() is None
    assert "small was ended by SIGKILL; starts again" in stack.service.printed


def test_an_engine_that_is_stopped_is_told_from_one_that_works(stack: Stack) -> None:
    """B53, by SIGSTOP."""
    stream = stack.stream("Tell a long story.", max_tokens=200)
    assert "error" not in next(stream)
    pid = stack.service.child("engine")
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: not stack.is_ready(), "readiness to say no", deadline_s=10.0)
        *_, last = stream
        assert last["error"]["code"] in ("unavailable", "upstream_failed")
        refusal = stack.refused()
        assert refusal is not None
        assert refusal.code == 503
        assert int(refusal.headers["retry-after"]) >= 1
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for(stack.is_ready, "the service to come back")
    assert stack.refused() is None
