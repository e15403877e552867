from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from engine.protocol.errors import ConfigError, SetupError
from fewer import engine as engine_command
from fewer import options
from gateway.config import Config

CONFIG = """
engine: {max_model_len: 2048, threads: auto}
models:
  small: {gguf: smollm2-135m, fallback: [large]}
  other: {gguf: ./other.gguf, max_model_len: 1024}
  large: {openai: "http://127.0.0.1:9/v1", fallback: [other, small]}
aliases: {gpt: small}
routes:
  chat: {model: small}
  long: {model: other, max_model_len: 3000}
  hard: {model: large}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "fewer.yaml"
    file.write_text(CONFIG)
    return file


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    options.add_config(parser)
    options.add_model(parser)
    options.add_executor(parser)
    options.add_listening(parser)
    return parser.parse_args(words)


def loaded(path: Path, *words: str) -> Config:
    return options.load_config(parsed("--config", str(path), *words))


def test_without_options_the_file_is_what_counts(path: Path) -> None:
    config = loaded(path)
    assert config.gguf_models() == ["small", "other"]
    assert options.with_listening(config, parsed()) == config


def test_without_a_file_the_built_in_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert options.load_config(parsed()).gguf_models() == ["smollm2-135m"]


def test_a_file_that_is_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        loaded(tmp_path / "none.yaml")


def test_a_model_takes_the_place_of_all_of_ours(path: Path) -> None:
    config = loaded(path, "--model", "./models/Qwen2.5 0.5B.Q8_0.gguf")
    name = "qwen2.5-0.5b.q8_0"
    assert config.gguf_models() == [name]
    assert list(config.models) == [name, "large"]
    assert config.models["large"].fallback == (name,)
    assert {key: route.model for key, route in config.routes.items()} == {
        "chat": name,
        "long": name,
        "hard": "large",
    }
    assert config.aliases == {"gpt": name}
    assert config.engine_settings(name).max_model_len == 3000


def test_where_one_model_is_left_there_is_no_choice(path: Path) -> None:
    rules = "{rules: [{has: [images], model: large}, {model: small}]}"
    path.write_text(path.read_text() + f"  routed: {{model: large, route: {rules}}}\n")
    assert loaded(path).routes["routed"].chosen == ("large", "small")
    assert loaded(path, "--model", "elsewhere/new.gguf").routes["routed"].chosen == ()


def test_a_model_that_the_file_describes_stays_as_described(path: Path) -> None:
    config = loaded(path, "--model", "small")
    assert config.gguf_models() == ["small"]
    assert config.models["small"].fallback == ("large",)
    assert config.routes["long"].model == "small"


def test_listening_options_win_over_the_file(path: Path) -> None:
    arguments = parsed("--host", "::1", "--port", "0", "--workers", "3")
    server = options.with_listening(loaded(path), arguments).server
    assert (server.host, server.port, server.workers) == ("::1", 0, 3)


def test_no_workers_is_refused(path: Path) -> None:
    with pytest.raises(SetupError, match="--workers must be at least 1"):
        options.with_listening(loaded(path), parsed("--workers", "0"))


def test_an_unknown_executor_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed("--executor", "tpu")
    assert ended.value.code == 2
    assert "'reference'" in capsys.readouterr().err


def engine_arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    engine_command.configure(parser)
    return parser.parse_args(words)


def selected(path: Path, *words: str) -> tuple[str, str, int]:
    arguments = engine_arguments("--config", str(path), *words)
    name, gguf, settings = engine_command.selected(arguments)
    return name, gguf, settings.max_model_len


def test_an_engine_alone_serves_one_model_of_the_file(path: Path) -> None:
    assert selected(path, "--model", "small") == ("small", "smollm2-135m", 2048)
    name, gguf, max_model_len = selected(path, "--model", "other")
    assert (name, max_model_len) == ("other", 3000)
    assert gguf == str(path.parent / "other.gguf")


def test_an_engine_alone_serves_a_file_that_the_configuration_does_not_know(path: Path) -> None:
    assert selected(path, "--model", "a/b.gguf", "--max-model-len", "64") == ("b", "a/b.gguf", 64)


def test_an_engine_alone_must_know_which_of_several(path: Path) -> None:
    with pytest.raises(SetupError, match=r"Choose one of small, other with --model"):
        selected(path)


def test_an_engine_alone_takes_the_only_one(tmp_path: Path) -> None:
    file = tmp_path / "fewer.yaml"
    file.write_text("models: {small: {gguf: smollm2-135m}}")
    assert selected(file)[0] == "small"


def test_an_engine_alone_needs_a_model(tmp_path: Path) -> None:
    file = tmp_path / "fewer.yaml"
    file.write_text("models: {large: {openai: 'http://127.0.0.1:9/v1'}}")
    with pytest.raises(SetupError, match=r"no gguf model\. Name one with --model"):
        selected(file)


def test_numbers_are_checked_and_0_threads_means_all(path: Path) -> None:
    with pytest.raises(SetupError, match="--max-num-seqs must be at least 1, not 0"):
        selected(path, "--model", "small", "--max-num-seqs", "0")
    arguments = engine_arguments("--config", str(path), "--model", "small", "--threads", "0")
    assert engine_command.selected(arguments)[2].threads == 0
