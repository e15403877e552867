"""`fewer replay`, on what a gateway has recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from fewer.main import main
from gateway.config import RecorderConfig
from tests.fakes.serving import running, scripted_config
from tests.gateway.recorder.lines import a_line, written
from tests.gateway.recorder.test_replay import chat

CONFIG = """
models: {one: {openai: "http://127.0.0.1:9/v1"}}
routes:
  chat: {model: one, budget: {max_tokens: 5, holdout: 0}, dedup: {}}
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "new.yaml"
    path.write_text(CONFIG)
    return str(path)


@pytest.fixture
def log(tmp_path: Path) -> str:
    lines = [a_line(chat("你好", max_tokens=40), tokens=40), a_line(chat("Hi"), route="old")]
    path = written(tmp_path / "log", lines)
    with path.open("ab") as file:
        file.write(b"half a li")
    return str(path)


def test_it_shows_what_would_change(
    config: str, log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []
    for _ in range(2):
        assert main(["replay", log, "--config", config]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    lines = [" ".join(line.split()) for line in shown[0].splitlines()]
    assert lines[0] == "2 requests; 1 lines are no records of any"
    assert "completion tokens, at most 40 5 -87.5%" in lines
    assert "chat budget active 1 0 0 1 0 40 to 5 0" in lines
    assert "not replayed: dedup of chat: it needs content, which was not recorded" in lines
    assert "not replayed: 1 requests of old: there is no such route" in lines


def test_as_json(config: str, log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", log, "--config", config, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["requests"], told["unreadable"], told["unknown"]) == (2, 1, {"old": 1})
    (route,) = told["routes"]
    assert (route["recorded"]["completion_tokens"], route["replayed"]["cut_short"]) == (40, 1)


def test_what_is_not_there_is_said(
    config: str, log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", f"{log}-none", "--config", config]) == 1
    assert "There is no recording" in capsys.readouterr().err
    assert main(["replay", log, "--config", f"{config}-none"]) == 1


@pytest.mark.parametrize("content", ["none", "full"])
async def test_what_a_gateway_records_can_be_replayed(tmp_path: Path, content: str) -> None:
    from fewer.replay import replayed

    recorder = RecorderConfig(tmp_path / "log", content="full" if content == "full" else "none")
    before = replace(scripted_config(), recorder=recorder)
    async with running(before) as gateway:
        for _ in range(2):
            await gateway.chat(temperature=0, max_tokens=50)
        await gateway.chat(temperature=0, max_tokens=50, stream=True)
    found = await replayed(scripted_config(budget=1), tmp_path / "log")
    (route,) = found.routes
    assert (route.recorded.generations, route.recorded.hits) == (1, 2)
    # A client has its answer a moment before the request ends: the next one may come in between.
    assert (route.replayed.generations, route.replayed.hits + route.replayed.joined) == (1, 2)
    assert (route.recorded.completion_tokens, route.replayed.completion_tokens) == (2, 1)
    assert route.replayed.prompt_tokens == route.recorded.prompt_tokens > 0


def test_answers_that_would_go_on_are_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    came = chat("Hi")
    cut = a_line(came, replace(came, max_tokens=4), tokens=4, cut=True)
    path = written(tmp_path / "log", [cut])
    config = tmp_path / "none.yaml"
    off = "cache: {exact: {mode: disabled}}, coalesce: {mode: disabled}"
    config.write_text(CONFIG.split("routes")[0] + f"routes: {{chat: {{model: one, {off}}}}}")
    assert main(["replay", str(path), "--config", str(config)]) == 0
    shown = capsys.readouterr().out
    assert "open-ended answers were cut" in shown
    assert "POLICY" not in shown
