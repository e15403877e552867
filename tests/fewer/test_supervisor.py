from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from engine.protocol.errors import SetupError
from fewer.child import Child
from fewer.merged_log import MergedLog
from fewer.supervisor import Backoff, Supervisor, how_it_ended
from tests.fewer.children import READY, WAIT_FOR_PARENT, python

SERVING = f"{READY} {WAIT_FOR_PARENT}"
Make = Callable[..., Supervisor]


class Said:
    """What a supervisor said, and a way to wait for it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._news = asyncio.Event()

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        self._news.set()

    async def hears(self, line: str) -> None:
        async with asyncio.timeout(20):
            while True:
                if line in self.lines:
                    return
                self._news.clear()
                await self._news.wait()


@pytest.fixture
async def said() -> Said:
    return Said()


@pytest.fixture
async def make(said: Said) -> AsyncIterator[Make]:
    made: list[Supervisor] = []

    def supervisor(**scripts: str) -> Supervisor:
        log = MergedLog(list(scripts), said)
        children = [Child(name, python(script), log) for name, script in scripts.items()]
        made.append(Supervisor(children, said, lambda: Backoff(first_s=0.0)))
        return made[-1]

    yield supervisor
    for each in made:
        await each.close()


def child_of(supervisor: Supervisor, place: int = 0) -> Child:
    return supervisor._children[place]


async def test_start_waits_until_all_are_ready(make: Make, said: Said) -> None:
    supervisor = make(gateway=SERVING, engine=SERVING)
    await supervisor.start()
    assert {line.split(" after")[0] for line in said.lines} == {
        "gateway is ready",
        "engine is ready",
    }


async def test_one_that_ends_before_it_is_ready_ends_the_start(make: Make, said: Said) -> None:
    supervisor = make(gateway=SERVING, engine="raise SystemExit('fewer: the file is cut short')")
    with pytest.raises(SetupError, match="engine ended with status 1 before it was ready"):
        await supervisor.start()
    assert "engine  | fewer: the file is cut short" in said.lines


async def test_one_that_is_killed_comes_back(make: Make, said: Said) -> None:
    supervisor = make(engine=SERVING)
    await supervisor.start()
    supervisor.keep()
    first = child_of(supervisor).pid
    os.kill(first, signal.SIGKILL)
    await said.hears("engine was ended by SIGKILL; starts again in 0 s")
    await said.hears("engine is back")
    assert child_of(supervisor).pid != first
    assert child_of(supervisor).running


async def test_one_that_fails_again_and_again_is_tried_again(
    make: Make, said: Said, tmp_path: Path
) -> None:
    # Fails on its second and third start, then serves.
    script = (
        "import os, sys\n"
        f"count = os.path.getsize({str(tmp_path / 'starts')!r})\n"
        f"open({str(tmp_path / 'starts')!r}, 'a').write('x')\n"
        "if count in (1, 2): sys.exit(3)\n" + SERVING
    )
    (tmp_path / "starts").touch()
    supervisor = make(engine=script)
    await supervisor.start()
    supervisor.keep()
    os.kill(child_of(supervisor).pid, signal.SIGKILL)
    await said.hears("engine is back")
    assert said.lines[1:] == [
        "engine was ended by SIGKILL; starts again in 0 s",
        "engine ended with status 3; starts again in 0 s",
        "engine ended with status 3; starts again in 0 s",
        "engine is back",
    ]


async def test_stop_ends_all_in_order_and_restarts_nothing(make: Make, said: Said) -> None:
    drains = (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit('drained'))\n"
        f"{READY} time.sleep(60)"
    )
    supervisor = make(gateway=drains, engine=drains)
    await supervisor.start()
    supervisor.keep()
    await supervisor.stop(deadline_s=30)
    assert said.lines[2:] == ["gateway | drained", "engine  | drained"]
    assert not child_of(supervisor, 0).running
    assert not child_of(supervisor, 1).running


async def test_kill_cuts_a_stop_short(make: Make, said: Said) -> None:
    deaf = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY} time.sleep(60)"
    supervisor = make(gateway=deaf)
    await supervisor.start()
    stopping = asyncio.create_task(supervisor.stop(deadline_s=60))
    supervisor.kill()
    async with asyncio.timeout(20):
        await stopping


def test_backoff_doubles_up_to_its_limit_and_forgets_after_good_times() -> None:
    backoff = Backoff(first_s=1.0, longest_s=5.0, stable_s=60.0)
    assert [backoff.after(0.1) for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert backoff.after(61.0) == 1.0
    assert backoff.after(0.1) == 2.0


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "ended with status 0"),
        (1, "ended with status 1"),
        (-9, "was ended by SIGKILL"),
        (-64, "was ended by SIGRTMAX"),
        (-99, "was ended by signal 99"),
    ],
)
def test_endings_in_words(status: int, words: str) -> None:
    assert how_it_ended(status) == words
