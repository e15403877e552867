from __future__ import annotations

import re
from pathlib import Path

import pytest

from fewer.main import main

CONFIG = """
server: {port: 9000, workers: 2}
store: sqlite:keys.sqlite3
models:
  ours: {gguf: smollm2-135m, max_model_len: 2048}
  lost: {gguf: ./lost.gguf}
  large: {openai: "http://127.0.0.1:9/v1", model: Qwen/Qwen3-32B, api_key: "${UPSTREAM_KEY}"}
  far: {engine: "ws://10.0.0.1:8090/v1/engine"}
  script: {scripted: script.json, fallback: [large]}
aliases: {gpt-4o-mini: chat}
routes:
  chat: {model: ours, budget: {max_tokens: 1512}}
  routed: {model: ours, route: {rules: [{script: han, model: large}]}}
  free: {model: large, limits: {requests_per_minute: 60, budget_tokens: 1000000}}
"""
FILE = Path(__file__).parents[2] / "fewer.yaml"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("UPSTREAM_KEY", "sk-secret")
    (tmp_path / "script.json").write_text('{"steps": []}')
    path = tmp_path / "fewer.yaml"
    path.write_text(CONFIG)
    return path


def test_a_good_file_is_summed_up(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--config", str(config)]) == 0
    folder = config.parent
    assert capsys.readouterr().out.splitlines() == [
        "listens   127.0.0.1 port 9000, 2 workers",
        f"keeps     {folder}/keys.sqlite3",
        "model     ours: our engine, smollm2-135m (will be pulled), 2,048 tokens",
        f"model     lost: our engine, {folder}/lost.gguf (MISSING on this machine), 4,096 tokens",
        "model     large: Qwen/Qwen3-32B at http://127.0.0.1:9/v1, with a key",
        "model     far: our engine at ws://10.0.0.1:8090/v1/engine",
        f"model     script: plays {folder}/script.json, falls back to large",
        "route     chat: ours, budget 1,512 tokens (active)",
        "route     routed: ours or large, no budget, route (active)",
        "route     free: large, no budget, at most 60 requests/min, 1,000,000 tokens/month",
        "alias     gpt-4o-mini: chat",
        "default   none: every request must name its model",
        "The configuration is good, but cannot be served here without lost.",
    ]


def test_a_mistake_is_one_line_with_file_line_and_key(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(CONFIG.replace("budget:", "buget:"))
    assert main(["check", "--config", str(config)]) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("fewer: fewer.yaml:12:routes.chat.buget: ")
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_the_file_that_make_serve_uses_is_good(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--config", str(FILE)]) == 0
    shown = capsys.readouterr().out
    assert "port 8080, 1 worker\n" in shown
    assert "route     chat: smollm2-135m, budget 512 tokens (active), history (active)\n" in shown
    assert shown.endswith("The configuration is good.\n")


def test_all_that_it_shows_commented_is_right_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the router, a file that only training makes."""
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas/invoice.json").write_text('{"type": "object"}')
    setting = re.compile(r"^( *)# ( *(?:\w[\w-]*:(?: |$)|- ).*)$", re.MULTILINE)
    head, rest = FILE.read_text("utf-8").split("\nserver:")
    rest, count = setting.subn(r"\1\2", rest)
    assert count > 60
    rest = re.sub(r"^ *(router|strong_share):.*\n", "", rest, flags=re.MULTILINE)
    path = tmp_path / "fewer.yaml"
    path.write_text(f"{head}\nserver:{rest}", "utf-8")
    assert main(["check", "--config", str(path)]) == 0, capsys.readouterr().err
    assert (
        "smollm2-135m or large, budget 512 tokens (active), shape (active), agent (active), "
        "semantic cache (shadow), route (active), history (active), input (active), dedup (shadow)"
    ) in capsys.readouterr().out


def test_who_listens_to_everybody_wants_keys(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(CONFIG.replace("port: 9000", "host: 0.0.0.0, port: 9000"))
    assert main(["check", "--config", str(config)]) == 0
    assert "listens   0.0.0.0 port 9000, 2 workers, only with keys\n" in capsys.readouterr().out


def test_a_window_that_the_file_has_not_got_is_found(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.gguf").symlink_to(model_path)
    path = tmp_path / "fewer.yaml"
    path.write_text("models: {one: {gguf: ./one.gguf, max_model_len: 100000}}")
    assert main(["check", "--config", str(path)]) == 1
    assert "above the window of one. Set it to 8192 or less." in capsys.readouterr().err


def test_a_damaged_file_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one.gguf").write_bytes(b"no model at all" * 9)
    path = tmp_path / "fewer.yaml"
    path.write_text("models: {one: {gguf: ./one.gguf}}")
    assert main(["check", "--config", str(path)]) == 1
    assert "one.gguf is not a GGUF file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "what"), [("none", "sizes and hashes"), ("full", "ALL THAT CLIENTS WRITE")]
)
def test_what_is_recorded_is_said(
    config: Path, capsys: pytest.CaptureFixture[str], content: str, what: str
) -> None:
    config.write_text(f"{CONFIG}recorder: {{path: log, content: {content}}}\n")
    assert main(["check", "--config", str(config)]) == 0
    line = capsys.readouterr().out.splitlines()[2]
    assert line == f"records   {what}, into {config.parent}/log"
