from __future__ import annotations

import signal

import pytest

from fewer.child import Child
from fewer.merged_log import MergedLog
from tests.fewer.children import READY, WAIT_FOR_PARENT, python, wait_gone


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def log(lines: list[str]) -> MergedLog:
    return MergedLog(["child"], lines.append)


async def test_it_is_ready_when_it_says_so_and_its_output_is_logged(
    log: MergedLog, lines: list[str]
) -> None:
    script = f"import sys; print('hello'); print('there', file=sys.stderr); {READY}"
    child = Child("child", python(f"{script} {WAIT_FOR_PARENT}"), log)
    await child.start()
    await child.ready.wait()
    child.kill()
    assert await child.wait() == -signal.SIGKILL
    assert not child.running
    assert lines == ["child | hello", "child | there"]


async def test_the_last_words_of_one_that_fails_are_logged(
    log: MergedLog, lines: list[str]
) -> None:
    child = Child("child", python("import sys; sys.exit('fewer: no such model')"), log)
    await child.start()
    assert await child.wait() == 1
    assert not child.ready.is_set()
    assert lines == ["child | fewer: no such model"]


async def test_stop_asks_politely(log: MergedLog, lines: list[str]) -> None:
    script = (
        "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit('drained'));"
        f"{READY} time.sleep(60)"
    )
    child = Child("child", python(script), log)
    await child.start()
    await child.ready.wait()
    await child.stop(deadline_s=30)
    assert lines == ["child | drained"]


async def test_one_that_does_not_listen_is_killed_at_the_deadline(
    log: MergedLog, lines: list[str]
) -> None:
    script = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY} time.sleep(60)"
    child = Child("child", python(script), log)
    await child.start()
    await child.ready.wait()
    await child.stop(deadline_s=0.05)
    assert await child.wait() == -signal.SIGKILL
    assert lines == ["child | did not end within 0.05 s: killed"]


async def test_what_it_leaves_behind_is_ended_with_it(log: MergedLog, lines: list[str]) -> None:
    script = f"{READY} worker = os.fork()\nif worker: print(worker)\nelse: time.sleep(60)"
    child = Child("child", python(script), log)
    await child.start()
    assert await child.wait() == 0
    wait_gone(int(lines[0].removeprefix("child | ")))


async def test_it_can_be_started_again(log: MergedLog) -> None:
    child = Child("child", python(f"{READY} {WAIT_FOR_PARENT}"), log)
    for _ in range(2):
        await child.start()
        await child.ready.wait()
        child.kill()
        assert await child.wait() == -signal.SIGKILL


async def test_stopping_what_has_ended_does_nothing(log: MergedLog) -> None:
    child = Child("child", python("pass"), log)
    await child.stop(1.0)
    await child.start()
    await child.wait()
    await child.stop(1.0)
    child.kill()


async def test_waiting_for_what_was_never_started_is_a_bug(log: MergedLog) -> None:
    with pytest.raises(RuntimeError, match="never started"):
        await Child("child", python("pass"), log).wait()


async def test_it_gets_the_environment_it_is_given(log: MergedLog, lines: list[str]) -> None:
    script = "import os; print(os.environ['SECRET'])"
    child = Child("child", python(script), log, {"SECRET": "shared"})
    await child.start()
    await child.wait()
    assert lines == ["child | shared"]
