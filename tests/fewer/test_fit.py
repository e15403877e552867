from __future__ import annotations

from pathlib import Path

import pytest

from engine.fit import Machine
from fewer import machine
from fewer.main import main

pytestmark = pytest.mark.model


@pytest.fixture(autouse=True)
def _a_known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Machine("box", 4 << 30, bandwidth_bytes_s=20e9, peak_flops=100e9)
    monkeypatch.setattr(machine, "this_machine", lambda: known)


def rows(out: str) -> dict[str, list[str]]:
    """The table, by the length at the start of each row."""
    lines = [line.split() for line in out.splitlines() if " tokens " in line and "≈" in line]
    return {words[0]: words[1:] for words in lines}


def test_what_fits_on_this_machine(model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", str(model_path), "--executor", "reference"]) == 0
    out = capsys.readouterr().out
    assert "(llama) on box" in out
    assert "45.0 KiB   per token" in out
    assert "11,648 tokens" in out
    assert "Fits: 2 requests of 4,096 tokens run safely at once." in out
    table = rows(out)
    assert list(table) == ["512", "1,024", "2,048", "4,096", "8,192"]
    assert table["4,096"][1:4] == ["180", "MiB", "2"]
    assert table["4,096"][-3:] == ["the", "served", "context"]


def test_the_native_executor_needs_less(
    model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", str(model_path), "--executor", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "4 and 8 bit, bfloat16 KV" in out
    assert "22.5 KiB   per token" in out
    assert "Fits: 5 requests of 4,096 tokens run safely at once." in out


def test_int8_kv_needs_about_half(model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--executor", "cpu", "--kv-cache-dtype", "int8"]
    assert main(["fit", str(model_path), *words]) == 0
    out = capsys.readouterr().out
    assert "4 and 8 bit, int8 KV" in out
    assert "12.0 KiB   per token" in out
    assert "Fits: 10 requests of 4,096 tokens run safely at once." in out


def test_int8_kv_is_not_the_reference_executors(
    model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--executor", "reference", "--kv-cache-dtype", "int8"]
    assert main(["fit", str(model_path), *words]) == 1
    assert "kv_cache_dtype int8 needs the cpu executor" in capsys.readouterr().err


def test_what_fits_on_a_named_gpu(model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", str(model_path), "--gpu", "rtx 4090", "--context", "8192"]) == 0
    out = capsys.readouterr().out
    assert "on RTX4090" in out
    assert "bfloat16" in out
    assert "22.5 KiB   per token" in out
    assert "(max_num_seqs; there is room for" in out
    assert rows(out)["8,192"][-3:] == ["the", "served", "context"]


def test_a_longer_context_says_what_it_costs(
    model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fit", str(model_path), "--context", "8000", "--kv-cache-mb", "200"]
    words += ["--executor", "reference"]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert (
        "No request of 8,000 tokens fits into the KV pool. Set kv_cache_mb to 352 or more." in out
    )


def test_a_context_beyond_the_window_is_said_not_to_be_served(
    model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", str(model_path), "--context", "99999"]) == 0
    assert "The model's window is 8,192 tokens" in capsys.readouterr().out


def test_a_machine_that_is_too_small(
    model_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "this_machine", lambda: Machine("tiny", 1 << 30))
    assert main(["fit", str(model_path), "--executor", "reference"]) == 1
    out = capsys.readouterr().out
    assert "Does not fit: 101 MiB are missing." in out
    assert "unknown" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpu", "h210"], "The GPU 'h210' is not in the table. Did you mean H200?"),
        (["--gpu", "abacus"], "The GPU 'abacus' is not in the table. Known: H200,"),
        (["--context", "0"], "--context must be at least 1, not 0."),
        (["--kv-cache-mb", "-5"], "--kv-cache-mb must be at least 1, not -5."),
    ],
)
def test_mistakes_are_one_line(
    model_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", str(model_path), *words]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"fewer: {message}")
    assert error.count("\n") == 1


def test_a_missing_model_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["fit", "smollm2-135m"]) == 1
    assert "Run `fewer models pull smollm2-135m`." in capsys.readouterr().err
