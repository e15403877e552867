from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from engine.protocol.errors import ConfigError, ModelFileError
from fewer import serve
from fewer.banner import banner
from fewer.launch import Launch, prepare
from fewer.survey import survey

CONFIG = """
engine: {kv_cache_mb: 64}
models:
  one: {gguf: ./one.gguf}
  two: {gguf: ./two.gguf, max_model_len: 1024}
routes: {chat: {model: one}}
"""


@pytest.fixture
def config(model_path: Path, tmp_path: Path) -> Path:
    for name in ("one", "two"):
        (tmp_path / f"{name}.gguf").symlink_to(model_path)
    path = tmp_path / "fewer.yaml"
    path.write_text(CONFIG)
    return path


def prepared(config: Path) -> Launch:
    parser = argparse.ArgumentParser()
    serve.configure(parser)
    words = ["--config", str(config), "--port", "0", "--engine-port", "0"]
    return prepare(parser.parse_args(words))


def test_what_fits_is_told_for_the_settings_of_each(config: Path) -> None:
    fits = survey(prepared(config))
    assert list(fits) == ["one", "two"]
    assert "of 4,096 tokens" in fits["one"]
    assert "of 1,024 tokens" in fits["two"]
    assert "64 MiB hold" in fits["two"]


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
        survey(prepared(config))


def test_a_window_for_all_engines_is_cut_to_that_of_each(config: Path) -> None:
    config.write_text("engine: {max_model_len: 100000}\nmodels: {one: {gguf: ./one.gguf}}")
    assert "of 8,192 tokens" in survey(prepared(config))["one"]


def test_a_file_that_is_no_model_is_named(config: Path) -> None:
    config.with_name("one.gguf").unlink()
    config.with_name("one.gguf").write_bytes(b"no model at all")
    with pytest.raises(ModelFileError, match=r"one\.gguf"):
        survey(prepared(config))


def test_the_banner_tells_where_what_and_how(config: Path) -> None:
    launch = prepared(config)
    fits = survey(launch)
    shown = banner(launch, fits, servable=True, keyed=False)
    assert shown.startswith("\nFewer is ready.\n")
    for part in (f"{launch.url}/\n", "chat → one", fits["two"], '"model": "chat"'):
        assert part in shown
    assert "any key will do" in shown
    assert "no route can answer yet" in banner(launch, fits, servable=False, keyed=False)


def test_where_keys_exist_the_banner_shows_where_to_put_one(config: Path) -> None:
    launch = prepared(config)
    shown = banner(launch, survey(launch), servable=True, keyed=True)
    assert "a key of `fewer keys`" in shown
    assert '/v1/chat/completions -H "authorization: Bearer $FEWER_API_KEY" -H' in shown


def test_lines_printed_while_something_spins_are_not_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    line = "word " * 30 + "end"
    with serve._spinner("starting"):
        sys.stdout.write(f"{line}\n")
    shown = capsys.readouterr().out
    assert "starting" in shown
    assert line in shown
