from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from engine.protocol.errors import ModelFileError
from fewer import serve
from fewer.launch import Launch, prepare
from fewer.main import main

CONFIG = """
engine: {kv_cache_mb: 64}
models:
  one: {gguf: ./one.gguf}
  two: {gguf: ./two.gguf, max_model_len: 1024}
routes: {chat: {model: one}}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("one", "two"):
        (tmp_path / f"{name}.gguf").touch()
    path = tmp_path / "fewer.yaml"
    path.write_text(CONFIG)
    return path


def prepared(*words: str) -> Launch:
    parser = argparse.ArgumentParser()
    serve.configure(parser)
    return prepare(parser.parse_args([*words, "--port", "0", "--engine-port", "0"]))


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_each_gguf_model_gets_an_engine_on_the_next_port(config: Path) -> None:
    launch = prepared("--config", str(config))
    one, two = launch.engines
    assert [one.name, two.name] == ["one", "two"]
    assert one.command[:5] == [sys.executable, "-m", "fewer", "engine", "--supervised"]
    port = int(option(one.command, "--port"))
    assert int(option(two.command, "--port")) == port + 1
    assert option(launch.gateway, "--engine-port") == str(port)
    assert launch.url == f"http://127.0.0.1:{option(launch.gateway, '--port')}"


def test_settings_travel_to_the_engines(config: Path) -> None:
    one, two = prepared("--config", str(config), "--executor", "reference").engines
    assert option(one.command, "--max-model-len") == "4096"
    assert option(two.command, "--max-model-len") == "1024"
    assert option(two.command, "--kv-cache-mb") == "64"
    assert option(two.command, "--executor") == "reference"
    assert option(two.command, "--model") == "two"


@pytest.mark.parametrize(
    ("cores", "setting", "threads"),
    [(5, "auto", ["3", "2"]), (1, "auto", ["1", "1"]), (5, "4", ["4", "4"])],
)
def test_engines_share_the_cores(
    config: Path, monkeypatch: pytest.MonkeyPatch, cores: int, setting: str, threads: list[str]
) -> None:
    monkeypatch.setattr("engine.runner.cores.usable_cores", lambda: cores)
    config.write_text(CONFIG.replace("kv_cache_mb: 64", f"threads: {setting}"))
    engines = prepared("--config", str(config)).engines
    assert [option(engine.command, "--threads") for engine in engines] == threads


def test_one_engine_alone_settles_its_threads_itself(config: Path) -> None:
    path = str(config.with_name("two.gguf"))
    (engine,) = prepared("--config", str(config), "--model", path).engines
    assert option(engine.command, "--threads") == "0"


def test_a_model_named_on_the_command_line_is_the_only_one(config: Path) -> None:
    path = str(config.with_name("two.gguf"))
    launch = prepared("--config", str(config), "--model", path, "--workers", "2")
    (engine,) = launch.engines
    assert engine.path == Path(path)
    assert option(engine.command, "--model") == path
    assert option(launch.gateway, "--model") == path
    assert option(launch.gateway, "--workers") == "2"


def test_a_missing_file_ends_it_before_anything_starts(config: Path) -> None:
    config.with_name("two.gguf").unlink()
    with pytest.raises(ModelFileError, match=r"two\.gguf"):
        prepared("--config", str(config))


def test_a_published_model_that_is_missing_is_pulled(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled: list[str] = []

    def pull(name: str) -> Path:
        pulled.append(name)
        return Path(f"/cache/{name}.gguf")

    monkeypatch.setattr("fewer.models.pull_showing_progress", pull)
    (engine,) = prepared("--config", str(config), "--model", "smollm2-135m").engines
    assert engine.path == Path("/cache/smollm2-135m.gguf")
    assert pulled == ["smollm2-135m"]


def test_an_upstream_needs_no_engine(config: Path) -> None:
    config.write_text("models: {large: {openai: 'http://127.0.0.1:9/v1'}}")
    assert prepared("--config", str(config)).engines == []


def test_a_model_that_nobody_knows_is_one_line_from_serve(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--config", str(config), "--port", "0", "--model", "smolm2"]) == 1
    shown = capsys.readouterr().err
    assert "'smolm2'" in shown
    assert "smollm2-135m" in shown
    assert shown.count("\n") == 1
