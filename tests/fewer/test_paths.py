from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

from engine.protocol.errors import SetupError
from fewer import paths


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", paths.TOKEN_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_folders_are_in_the_home(home: Path) -> None:
    assert paths.cache_folder() == home / ".cache" / "fewer"
    assert paths.state_folder() == home / ".local" / "state" / "fewer"


def test_the_xdg_variables_move_them(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/ignored")
    assert paths.cache_folder() == Path("/elsewhere/fewer")
    assert paths.state_folder() == home / ".local" / "state" / "fewer"


def test_the_token_is_made_once_and_only_for_its_owner() -> None:
    token = paths.engine_token()
    assert len(token) >= 32
    assert paths.engine_token() == token
    file = paths.state_folder() / "engine-token"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert [entry.name for entry in file.parent.iterdir()] == ["engine-token"]


def test_a_shell_is_told_where_the_token_is(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = paths.engine_token()
    shell = ["sh", "-c", f'printf %s "{paths.engine_token_in_shell()}"']
    assert subprocess.check_output(shell, text=True) == token
    monkeypatch.setenv(paths.TOKEN_VARIABLE, "mine")
    assert paths.engine_token_in_shell() == "$FEWER_ENGINE_TOKEN"


def test_a_token_file_that_others_can_read_is_closed() -> None:
    token = paths.engine_token()
    file = paths.state_folder() / "engine-token"
    file.chmod(0o644)
    assert paths.engine_token() == token
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_variable_comes_before_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(paths.TOKEN_VARIABLE, " from the environment \n")
    assert paths.engine_token() == "from the environment"
    assert not paths.state_folder().exists()


def test_processes_that_start_together_agree() -> None:
    barrier = threading.Barrier(8)
    tokens: list[str] = []

    def start() -> None:
        barrier.wait()
        tokens.append(paths.engine_token())

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(tokens)) == 1


def test_a_folder_that_cannot_be_written_is_one_line(home: Path) -> None:
    (home / ".local").write_text("a file where a folder should be")
    with pytest.raises(SetupError, match=r"Cannot keep .*engine-token.*FEWER_ENGINE_TOKEN\."):
        paths.engine_token()


def test_an_empty_token_file_is_not_a_token() -> None:
    file = paths.state_folder() / "engine-token"
    file.parent.mkdir(parents=True)
    file.touch(mode=0o600)
    with pytest.raises(SetupError, match=r"engine-token is empty\. Delete it"):
        paths.engine_token()
