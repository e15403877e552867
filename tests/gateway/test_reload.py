"""Following a file: what is taken over, what is said, and when."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from engine.protocol.errors import ConfigError
from gateway import reload
from gateway.config import Config, load
from gateway.reload import Live, following
from gateway.route_policies import policies_of
from gateway.source import Source

TEXT = """
server: {port: 8080}
models: {one: {openai: "http://127.0.0.1:1/v1"}}
routes: {chat: {model: one, budget: {max_tokens: 5}}}
"""


class File:
    """A file that is followed, and the configurations that it led to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "fewer.yaml"
        self.path.write_text(TEXT)
        self.source = Source(self.path, partial(load, self.path, {"HOME": "/nowhere"}))
        self.live = Live(self.source.load(), self.source)
        self.taken: asyncio.Queue[Config] = asyncio.Queue()

    def write(self, before: str, after: str) -> None:
        assert before in TEXT
        self.path.write_text(TEXT.replace(before, after))

    @asynccontextmanager
    async def followed(
        self, exchange: Callable[[Config], None] | None = None
    ) -> AsyncIterator[None]:
        async with following(self.live, exchange or self.taken.put_nowait):
            yield

    def budget(self) -> int:
        budget = self.live.config.routes["chat"].budget
        assert budget is not None
        return budget.max_tokens


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> File:
    monkeypatch.setattr(reload, "LOOK_EVERY_S", 0.001)
    return File(tmp_path)


def hang_up() -> None:
    os.kill(os.getpid(), signal.SIGHUP)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "fewer.reload")
    return lambda: [record.getMessage() for record in caplog.records]


async def until_said(said: Callable[[], list[str]], lines: int) -> list[str]:
    while len(said()) < lines:  # noqa: ASYNC110 - the log has no event
        await asyncio.sleep(0.001)
    return said()


async def test_a_change_is_taken_over(file: File, said: Callable[[], list[str]]) -> None:
    async with file.followed():
        file.write("max_tokens: 5", "max_tokens: 6")
        config = await file.taken.get()
        lines = await until_said(said, 1)
    assert config is file.live.config
    assert file.budget() == 6
    assert lines == ["fewer.yaml was read again and holds for new requests"]


async def test_what_is_wrong_changes_nothing_and_is_said_once(
    file: File, said: Callable[[], list[str]]
) -> None:
    async with file.followed():
        file.write("budget: {max_tokens: 5}", "buget: {max_tokens: 6}")
        await until_said(said, 1)
        file.write("max_tokens: 5", "max_tokens: 7")
        assert await file.taken.get() is not None
        lines = await until_said(said, 2)
    assert lines[0] == (
        "fewer.yaml:4:routes.chat.buget: unknown key. Did you mean budget? "
        "The configuration stays as it was."
    )
    assert file.budget() == 7
    assert len(lines) == 2


async def test_what_cannot_change_is_said_in_one_line(
    file: File, said: Callable[[], list[str]]
) -> None:
    async with file.followed():
        file.write("8080}", "9090, host: '::1'}\nengine: {kv_cache_mb: 9}")
        config = await file.taken.get()
        lines = await until_said(said, 2)
    assert config.server.port == 8080
    expected = "server.host, server.port, engine.kv_cache_mb"
    assert lines[1] == f"fewer.yaml: holds only after a restart: {expected}"


async def test_what_cannot_be_opened_changes_nothing(
    file: File, said: Callable[[], list[str]]
) -> None:
    def refuse(config: Config) -> None:
        raise ConfigError("No such script.")

    async with file.followed(refuse):
        file.write("max_tokens: 5", "max_tokens: 6")
        lines = await until_said(said, 1)
    assert lines == ["No such script. The configuration stays as it was."]
    assert file.budget() == 5


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_hangup_reads_it_at_once(
    file: File, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Also where nothing has changed: a file with a key may have."""
    monkeypatch.setattr(reload, "LOOK_EVERY_S", 1000)
    monkeypatch.setattr(os, "isatty", lambda descriptor: workers > 1)
    file.write("8080", f"8080, workers: {workers}")
    file.live = Live(file.source.load(), file.source)
    async with file.followed():
        for _ in range(2):
            hang_up()
            await file.taken.get()


async def test_a_worker_looks_at_nothing_by_itself_and_says_nothing(
    file: File, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write("8080", "8080, workers: 2")
    file.live = Live(file.source.load(), file.source)
    monkeypatch.setattr(file.source, "has_changed", lambda: pytest.fail("looked"))
    async with file.followed():
        file.path.write_text(file.path.read_text().replace("max_tokens: 5", "max_tokens: 6"))
        hang_up()
        await file.taken.get()
    assert file.budget() == 6
    assert said() == []


async def test_a_terminal_that_goes_ends_the_process(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "isatty", lambda descriptor: True)
    async with file.followed():
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


async def test_a_fault_of_ours_does_not_pass_in_silence(
    file: File, said: Callable[[], list[str]]
) -> None:
    def fail(config: Config) -> None:
        raise ZeroDivisionError

    async with file.followed(fail):
        hang_up()
        lines = await until_said(said, 1)
    assert lines == ["the configuration is not followed any more: ZeroDivisionError()"]


def with_policies(file: File, **route: str) -> None:
    """The file with these settings of its route, as YAML."""
    settings = ", ".join(f"{name}: {value}" for name, value in route.items())
    file.write("budget: {max_tokens: 5}", settings)


def epochs(config: Config) -> dict[str, str]:
    return {policy.name: policy.epoch for policy in policies_of(config.routes["chat"])}


async def test_other_settings_are_another_experiment_and_the_former_ones_the_former(
    file: File,
) -> None:
    """Back to what was there before, a policy's arms and findings are those of before."""
    first = epochs(file.live.config)
    async with file.followed():
        with_policies(file, budget="{max_tokens: 6}")
        second = epochs(await file.taken.get())
        file.path.write_text(TEXT)
        third = epochs(await file.taken.get())
    assert second["budget"] != first["budget"]
    assert {**second, "budget": ""} == {**first, "budget": ""}
    assert third == first


@pytest.mark.parametrize("changed", ["mode: shadow", "holdout: 0.5"])
async def test_mode_and_holdout_change_within_an_experiment(file: File, changed: str) -> None:
    first = epochs(file.live.config)
    async with file.followed():
        with_policies(file, budget=f"{{max_tokens: 5, {changed}}}")
        config = await file.taken.get()
    assert epochs(config) == first
    budget = policies_of(config.routes["chat"])[0]
    assert (budget.mode, budget.holdout) in [("shadow", 0.05), ("active", 0.5)]


@pytest.mark.parametrize(
    "wrong",
    [
        "budget: {max_tokens: 0}",
        "budget: {max_tokens: 6}, history: {high_tokens: 5, low_tokens: 9}",
        "budget: {max_tokens: 6",
        "budget: {max_tokens: 6}, cache: {ttl_s: never}",
    ],
)
async def test_one_wrong_policy_keeps_all_former_ones(
    file: File, said: Callable[[], list[str]], wrong: str
) -> None:
    former = file.live.config
    async with file.followed():
        file.write("budget: {max_tokens: 5}", wrong)
        (line,) = await until_said(said, 1)
    assert file.taken.empty()
    assert file.live.config is former
    assert line.startswith("fewer.yaml:")
    assert line.endswith("The configuration stays as it was.")


async def test_a_recording_begins_and_ends_without_a_restart(file: File) -> None:
    async with file.followed():
        file.path.write_text(TEXT + "recorder: {path: log/requests.jsonl}")
        recorder = (await file.taken.get()).recorder
        file.path.write_text(TEXT)
        assert (await file.taken.get()).recorder is None
    assert recorder is not None
    assert recorder.path == file.path.parent / "log" / "requests.jsonl"
    assert (recorder.content, recorder.max_mb, recorder.files) == ("none", 64, 5)
