"""Recording at work: what a line holds, and that no request waits for it."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.config import RecorderConfig
from gateway.recorder import recorder as module
from gateway.recorder.files import RotatedFile
from gateway.recorder.line import Line, decode
from gateway.recorder.recorder import Recorder
from gateway.recorder.sizes import Measuring
from gateway.telemetry.metrics import Metrics, Spent
from gateway.tenants import OPEN
from gateway.visit import Visit
from policies.holdout import conversation_of
from policies.request import Request
from tests.fakes.ledger import an_entry, ruling
from tests.fakes.serving import Serve, scripted_config, until

SECRET = "我的账号是 7788"
MESSAGES = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": SECRET}]
REQUEST = Request(
    "chat", "chat", messages=MESSAGES, parameters={"temperature": 0, "user": SECRET, "seed": 7}
)
SENT = replace(REQUEST, messages=MESSAGES[1:], max_tokens=5, n=2)


def note(recorder: Recorder, request: Request = REQUEST, **fields: Any) -> None:
    visit = Visit("id", "call", "POST", "/", tenant=OPEN, cache="miss", cache_control="no-cache")
    visit.spent = Spent(30, 9)
    entry = an_entry(call_id="call", seconds=0.5, rulings=(ruling(asked_tokens=9),), **fields)
    recorder.note(request, SENT, entry, visit)


@pytest.fixture
def settings(tmp_path: Path) -> RecorderConfig:
    return RecorderConfig(tmp_path / "requests.jsonl")


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def recorder(settings: RecorderConfig, metrics: Metrics) -> Recorder:
    recorder = Recorder(metrics)
    recorder.keep(settings)
    return recorder


def lines(path: Path) -> list[Line]:
    found = [decode(data) for data in path.read_bytes().splitlines()]
    assert None not in found
    return [line for line in found if line is not None]


async def test_without_content_there_are_sizes_and_hashes(
    recorder: Recorder, settings: RecorderConfig
) -> None:
    note(recorder)
    await recorder.flush()
    text = settings.path.read_text()
    assert not any(word in text for word in ("kind", "7788", "账号", "\\u"))
    (line,) = lines(settings.path)
    assert (line.id, line.begun_s, line.route, line.tenant) == ("call", 999.5, "chat", "t")
    assert (line.asked, line.conversation, line.cache_control) == ("chat", "c", "no-cache")
    assert line.request is None
    assert line.sizes is not None
    system, user = line.sizes.messages
    assert (system.role, user.role, user.typed, user.pinned) == ("system", "user", True, False)
    assert user.tokens > system.tokens > 5
    assert line.sizes.parameters["temperature"] == 0
    assert not isinstance(line.sizes.parameters["user"], str)
    assert (line.ended.prompt_tokens, line.ended.completion_tokens) == (30, 9)
    assert line.ended.allowed_tokens == 10
    assert 0 < line.ended.sent_tokens < system.tokens + user.tokens
    assert line.decisions == (ruling(asked_tokens=9),)


async def test_content_is_written_when_asked(recorder: Recorder, settings: RecorderConfig) -> None:
    recorder.keep(replace(settings, content="full"))
    note(recorder)
    await recorder.flush()
    (line,) = lines(settings.path)
    assert line.request == REQUEST
    assert line.sizes is None


async def test_what_came_before_content_was_asked_for_is_written_without(
    recorder: Recorder, settings: RecorderConfig
) -> None:
    note(recorder)
    recorder.keep(replace(settings, content="full"))
    note(recorder)
    await recorder.flush()
    assert [line.request is not None for line in lines(settings.path)] == [False, True]


async def test_hashes_tell_what_is_the_same_and_only_within_a_tenant(
    recorder: Recorder, settings: RecorderConfig
) -> None:
    note(recorder)
    note(recorder, replace(REQUEST, messages=[*MESSAGES, {"role": "user", "content": "And?"}]))
    await recorder.flush()
    first, second = (line.sizes for line in lines(settings.path))
    assert first is not None
    assert second is not None
    assert second.messages[:2] == first.messages
    other = Measuring("another salt").sizes(REQUEST)
    assert not {each.hash for each in other.messages} & {each.hash for each in first.messages}
    assert [each.tokens for each in other.messages] == [each.tokens for each in first.messages]


async def test_off_it_notes_nothing(recorder: Recorder, settings: RecorderConfig) -> None:
    recorder.keep(None)
    note(recorder)
    await recorder.flush()
    assert repr(recorder) == "<Recorder off, 0 pending>"
    assert not settings.path.exists()


async def test_a_full_disk_is_said_once_and_what_does_not_fit_is_counted(
    recorder: Recorder,
    settings: RecorderConfig,
    metrics: Metrics,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "MAX_PENDING", 2)
    settings.path.mkdir()
    with caplog.at_level(logging.WARNING, "fewer.recorder"):
        for _ in range(3):
            note(recorder)
            await recorder.flush()
        assert repr(recorder) == f"<Recorder to {settings.path}, 2 pending>"
        settings.path.rmdir()
        await recorder.flush()
    assert len(lines(settings.path)) == 2
    assert b"fewer_recorder_dropped_total 1.0" in metrics.text()
    assert [record.message.partition(";")[0] for record in caplog.records] == [
        "requests are not recorded",
        "requests are recorded again",
    ]


TEXT = "x" * 200
IMAGE = {"type": "image_url", "image_url": {"url": TEXT}}
LONG: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": TEXT}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}]}]},
    {"messages": [{"role": "user", "content": [IMAGE]}]},
    {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": TEXT}}]}]},
    {"tools": [{"type": "function", "function": {"name": "f", "description": TEXT}}]},
    {"schema": {"title": TEXT}},
    {"parameters": {"metadata": {TEXT: 1}}},
    {"prompts": [TEXT]},
    {"prompts": [[7] * 200]},
]


@pytest.mark.parametrize("fields", LONG)
async def test_memory_is_bounded_by_what_waits(
    recorder: Recorder,
    metrics: Metrics,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
) -> None:
    monkeypatch.setattr(module, "MAX_PENDING_CHARS", 400)
    long = replace(REQUEST, **fields)
    note(recorder, long)
    note(recorder, long)
    assert b"fewer_recorder_dropped_total 1.0" in metrics.text()
    await recorder.flush()
    note(recorder, long)
    assert b"fewer_recorder_dropped_total 1.0" in metrics.text()


async def test_what_is_no_text_is_left_out(
    recorder: Recorder, settings: RecorderConfig, metrics: Metrics
) -> None:
    recorder.keep(replace(settings, content="full"))
    note(recorder, replace(REQUEST, messages=[{"role": "user", "content": "\ud800"}]))
    note(recorder)
    await recorder.flush()
    assert len(lines(settings.path)) == 1
    assert b"fewer_recorder_dropped_total 1.0" in metrics.text()


async def test_it_writes_by_itself_and_at_the_end(
    recorder: Recorder, settings: RecorderConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FLUSH_EVERY_S", 0.001)
    async with recorder.running():
        note(recorder)
        await until(settings.path.exists)
        monkeypatch.setattr(module, "FLUSH_EVERY_S", 1000)
        note(recorder)
        note(recorder)
    assert len(lines(settings.path)) == 3


async def test_over_http(serve: Serve, settings: RecorderConfig) -> None:
    config = replace(scripted_config(budget=5), recorder=settings)
    gateway = await serve(config)
    answer = await gateway.chat(max_tokens=50, temperature=0, messages=MESSAGES)
    await gateway.chat(max_tokens=50, temperature=0, messages=MESSAGES, stream=True)
    await until(lambda: settings.path.exists() and len(lines(settings.path)) == 2)
    first, second = lines(settings.path)
    assert answer.json()["id"].endswith(first.id)
    assert (first.ended.source, second.ended.source) == ("miss", "hit")
    assert first.ended.completion_tokens == second.ended.completion_tokens == 2
    assert first.conversation == conversation_of(REQUEST)
    assert first.sizes is not None
    assert second.sizes is not None
    assert first.sizes.messages == second.sizes.messages
    assert (first.sizes.max_tokens, first.ended.allowed_tokens) == (50, 5)
    gateway.exchange(scripted_config(budget=5))
    await gateway.chat(messages=MESSAGES)
    assert len(lines(settings.path)) == 2


async def test_a_fault_of_ours_is_said_loudly_and_ends_nothing(
    recorder: Recorder,
    settings: RecorderConfig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "encode", lambda line: 1 / 0)
    note(recorder)
    await recorder.flush()
    assert "requests are not recorded: ZeroDivisionError" in caplog.text
    monkeypatch.undo()
    note(recorder)
    await recorder.flush()
    assert len(lines(settings.path)) == 1


async def test_a_disk_that_hangs_holds_up_no_end(
    recorder: Recorder, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "END_S", 0.01)
    free = threading.Event()
    monkeypatch.setattr(RotatedFile, "append", lambda self, lines: free.wait())
    async with recorder.running():
        note(recorder)
        await recorder.flush()
        note(recorder)
        await recorder.flush()
    assert repr(recorder).endswith("2 pending>")
    free.set()
