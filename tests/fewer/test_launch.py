from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from engine.protocol.errors import ConfigError, ModelFileError
from fewer import serve
from fewer.banner import banner
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
def config(model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("one", "two"):
        (tmp_path / f"{name}.gguf").symlink_to(model_path)
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


def test_a_model_named_on_the_command_line_is_the_only_one(config: Path) -> None:
    path = str(config.with_name("two.gguf"))
    launch = prepared("--config", str(config), "--model", path, "--workers", "2")
    (engine,) = launch.engines
    assert option(engine.command, "--model") == path
    assert option(launch.gateway, "--model") == path
    assert option(launch.gateway, "--workers") == "2"


def test_a_missing_file_ends_it_before_anything_starts(config: Path) -> None:
    config.with_name("two.gguf").unlink()
    with pytest.raises(ModelFileError, match=r"two\.gguf"):
        prepared("--config", str(config))


def test_a_published_model_that_is_missing_is_pulled(
    config: Path, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled: list[str] = []

    def pull(name: str) -> Path:
        pulled.append(name)
        return model_path

    monkeypatch.setattr("fewer.models.pull_showing_progress", pull)
    (engine,) = prepared("--config", str(config), "--model", "smollm2-135m").engines
    assert engine.name == "smollm2-135m"
    assert pulled == ["smollm2-135m"]


def test_what_fits_is_told_for_the_settings_of_each(config: Path) -> None:
    one, two = prepared("--config", str(config)).engines
    assert "of 4,096 tokens" in one.fits
    assert "of 1,024 tokens" in two.fits
    assert "64 MiB hold" in two.fits


@pytest.mark.parametrize(
    ("asked", "key"),
    [
        ("models: {one: {gguf: ./one.gguf, max_model_len: 8193}}", "models.one"),
        (
            "models: {one: {gguf: ./one.gguf}}\nroutes: {c: {model: one, max_model_len: 9000}}",
            "routes.c",
        ),
    ],
)
def test_a_window_that_the_model_has_not_got_is_refused(config: Path, asked: str, key: str) -> None:
    config.write_text(asked)
    with pytest.raises(ConfigError, match=rf"{key}\.max_model_len: .* Set it to 8192 or less"):
        prepared("--config", str(config))


def test_a_window_for_all_engines_is_cut_to_that_of_each(config: Path) -> None:
    config.write_text("engine: {max_model_len: 100000}\nmodels: {one: {gguf: ./one.gguf}}")
    assert "of 8,192 tokens" in prepared("--config", str(config)).engines[0].fits


def test_a_file_that_is_no_model_ends_it_before_anything_starts(config: Path) -> None:
    config.with_name("one.gguf").unlink()
    config.with_name("one.gguf").write_bytes(b"no model at all")
    with pytest.raises(ModelFileError, match=r"one\.gguf"):
        prepared("--config", str(config))


def test_the_banner_tells_where_what_and_how(config: Path) -> None:
    launch = prepared("--config", str(config))
    shown = banner(launch, servable=True)
    assert shown.startswith("\nFewer is ready.\n")
    for part in (f"{launch.url}/\n", "chat → one", launch.engines[1].fits, '"model": "chat"'):
        assert part in shown
    assert "no route can answer yet" in banner(launch, servable=False)


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
