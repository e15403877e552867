"""When a file counts as changed."""

from __future__ import annotations

import os
import pickle
from functools import partial
from pathlib import Path

import pytest

from gateway.config import Config, load
from gateway.source import Source

TEXT = "models: {small: {gguf: smollm2-135m}}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "fewer.yaml"
    path.write_text(TEXT)
    return path


def source_of(path: Path) -> Source:
    source = Source(path, partial(load, path, {"HOME": "/nowhere"}))
    source.load()
    return source


def test_a_file_that_stays_has_not_changed(path: Path) -> None:
    source = source_of(path)
    assert [source.has_changed() for _ in range(3)] == [False] * 3
    assert repr(source) == f"<Source {path}>"


def test_a_change_counts_once_it_has_rested_and_until_it_is_read(path: Path) -> None:
    source = source_of(path)
    path.write_text(TEXT + "# more\n")
    assert [source.has_changed() for _ in range(3)] == [False, True, True]
    path.write_text(TEXT + "# still more\n")
    assert [source.has_changed() for _ in range(2)] == [False, True]
    source.load()
    assert not source.has_changed()


def test_another_file_under_the_name_is_a_change(path: Path, tmp_path: Path) -> None:
    """Editors, and Kubernetes, put a new file in the place of the old one."""
    source = source_of(path)
    other = tmp_path / "new"
    other.write_text(TEXT)
    written = path.stat().st_mtime_ns
    os.utime(other, ns=(written, written))
    other.rename(path)
    assert [source.has_changed() for _ in range(2)] == [False, True]


def test_a_file_that_is_gone_has_not_changed_until_it_is_back(path: Path) -> None:
    source = source_of(path)
    path.unlink()
    assert [source.has_changed() for _ in range(3)] == [False] * 3
    path.write_text(TEXT + "# back\n")
    assert [source.has_changed() for _ in range(2)] == [False, True]


def test_a_change_while_it_is_read_is_seen_later(path: Path) -> None:
    def load_slowly() -> Config:
        config = load(path, {"HOME": "/nowhere"})
        path.write_text(TEXT + "# meanwhile\n")
        return config

    source = Source(path, load_slowly)
    source.load()
    assert [source.has_changed() for _ in range(2)] == [False, True]


def test_it_travels_to_workers(path: Path) -> None:
    source = pickle.loads(pickle.dumps(source_of(path)))
    assert list(source.load().models) == ["small"]
    path.write_text(TEXT + "# more\n")
    assert [source.has_changed() for _ in range(2)] == [False, True]
