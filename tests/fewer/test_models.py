from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType
from numpy import float32, uint8, zeros

from fewer import model_store
from fewer.main import main
from fewer.model_store import Progress


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "Mine [v2].gguf"
    writer = GGUFWriter(path, "qwen2")
    writer.add_context_length(32768)
    writer.add_tensor(
        "token_embd.weight", zeros((256, 340), uint8), raw_dtype=GGMLQuantizationType.Q8_0
    )
    writer.add_tensor("output_norm.weight", zeros(320, float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("words", [["models", "list"], ["models"]])
def test_list_shows_what_can_be_pulled(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    assert "smollm2-135m" in (out := capsys.readouterr().out)
    assert "98 MB" in out
    assert "fewer models pull smollm2-135m" in out


def test_added_models_are_listed_with_what_their_header_says(
    gguf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "add", str(gguf)]) == 0
    out = capsys.readouterr().out
    assert "Added mine-v2: qwen2, Q8_0, 0 MB, a window of 32,768 tokens" in out
    main(["models", "list"])
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("mine-v2"))
    assert row.split()[1:6] == ["0", "MB", "qwen2", "Q8_0", "32,768"]
    assert row.rstrip().endswith(str(gguf))


def test_remove_forgets_and_says_that_the_file_stays(
    gguf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["models", "add", str(gguf), "--name", "mine"])
    assert main(["models", "remove", "mine"]) == 0
    assert f"Forgot mine; {gguf} stays." in capsys.readouterr().out
    assert gguf.exists()


def test_missing_and_damaged_files_are_listed_and_not_fatal(
    gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["models", "add", str(gguf), "--name", "gone"])
    other = tmp_path / "other.gguf"
    other.write_bytes(gguf.read_bytes())
    main(["models", "add", str(other), "--name", "cut"])
    gguf.unlink()
    other.write_bytes(other.read_bytes()[:-1000])
    assert main(["models", "list"]) == 0
    rows = {line.split()[0]: line.split()[1] for line in capsys.readouterr().out.splitlines()}
    assert (rows["gone"], rows["cut"]) == ("gone", "damaged")


def test_pull_shows_progress_and_where_the_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pull(name: str, progress: Progress) -> Path:
        progress("waiting", 0, 0)
        progress("downloading", 5, 10)
        progress("unpacking", 10, 10)
        return tmp_path / f"{name}.gguf"

    monkeypatch.setattr(model_store, "pull", pull)
    assert main(["models", "pull", "smollm2-135m"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "smollm2-135m: waiting for another pull",
        "smollm2-135m: downloading",
        "smollm2-135m: unpacking and checking",
        f"smollm2-135m is here: {tmp_path / 'smollm2-135m.gguf'}",
    ]


def test_a_terminal_sees_bars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pull(name: str, progress: Progress) -> Path:
        progress("downloading", 5_000_000, 10_000_000)
        progress("downloading", 10_000_000, 10_000_000)
        return tmp_path

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(model_store, "pull", pull)
    assert main(["models", "pull", "smollm2-135m"]) == 0
    shown = capsys.readouterr().err
    assert "smollm2-135m: downloading" in shown
    assert "━" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pull", "nothing"], "There is no model 'nothing' to pull."),
        (["remove", "nothing"], "There is no model and no file 'nothing'."),
        (["add", "/nowhere.gguf"], "There is no file /nowhere.gguf."),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", *words]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"fewer: {message}")
    assert error.count("\n") == 1
