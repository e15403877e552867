"""Rotated files: what is written is whole, and the oldest goes."""

from __future__ import annotations

import errno
import os
from collections import deque
from multiprocessing import get_context
from pathlib import Path

import pytest

from gateway.recorder.files import RotatedFile


def append(path: Path, *lines: bytes, max_bytes: int = 100, files: int = 3) -> deque[bytes]:
    left = deque(lines)
    RotatedFile(path, max_bytes, files).append(left)
    return left


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "requests.jsonl"


def test_lines_are_appended_and_only_the_user_may_read_them(path: Path) -> None:
    assert not append(path, b"a\n", b"b\n")
    assert not append(path, b"c\n")
    assert path.read_bytes() == b"a\nb\nc\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.chmod(0o644)
    append(path, b"d\n")
    assert path.stat().st_mode & 0o777 == 0o600


def test_nothing_to_write_makes_no_file(path: Path) -> None:
    append(path)
    assert not path.parent.exists()


def test_a_full_file_makes_room_and_the_oldest_goes(path: Path) -> None:
    for number in range(9):
        append(path, b"%d" % number * 39 + b"\n")
    assert names(path.parent) == ["requests.jsonl", "requests.jsonl.1", "requests.jsonl.2"]
    kept = [(path.parent / name).read_bytes() for name in names(path.parent)]
    assert [set(data) for data in kept] == [set(b"8\n"), set(b"67\n"), set(b"45\n")]


def test_one_batch_may_fill_several_files(path: Path) -> None:
    assert not append(path, *[b"x" * 59 + b"\n"] * 3)
    assert len(names(path.parent)) == 3


def test_a_line_that_is_too_long_has_a_file_for_itself(path: Path) -> None:
    append(path, b"a\n", b"x" * 500 + b"\n", b"b\n")
    assert (path.parent / "requests.jsonl.1").read_bytes() == b"x" * 500 + b"\n"
    assert path.read_bytes() == b"b\n"


def test_a_single_file_begins_anew(path: Path) -> None:
    append(path, b"a" * 99 + b"\n", files=1)
    append(path, b"b\n", files=1)
    assert names(path.parent) == ["requests.jsonl"]
    assert path.read_bytes() == b"b\n"


def test_a_full_disk_leaves_no_half_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(path, b"a\n")
    write, room = os.write, [1]

    def short(descriptor: int, data: bytes) -> int:
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[: room.pop()])

    monkeypatch.setattr(os, "write", short)
    lines = deque([b"long line\n"])
    with pytest.raises(OSError, match="No space"):
        RotatedFile(path, 100, 2).append(lines)
    assert path.read_bytes() == b"a\n"
    monkeypatch.undo()
    RotatedFile(path, 100, 2).append(lines)
    assert path.read_bytes() == b"a\nlong line\n"
    assert not lines


def _append_many(path: Path, name: bytes) -> None:
    for number in range(50):
        append(path, b"%s%d\n" % (name, number), max_bytes=60, files=1000)


def test_several_processes_lose_and_tear_nothing(path: Path) -> None:
    context = get_context("fork")
    writers = [context.Process(target=_append_many, args=(path, name)) for name in (b"a", b"b")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    lines = b"".join((path.parent / name).read_bytes() for name in names(path.parent)).split()
    assert sorted(lines) == sorted(b"%s%d" % (n, i) for n in (b"a", b"b") for i in range(50))


def test_it_shows_where_it_writes(path: Path) -> None:
    assert repr(RotatedFile(path, 1, 1)) == f"<RotatedFile {path}>"
