"""B49: a damaged model ends the start, with one line that says what is wrong with which file."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fewer.main import main
from tests.fakes.service import REPOSITORY

pytestmark = pytest.mark.model

START_S = 60.0
BEGINNING_BYTES = 4 * 1024 * 1024
"""More than all metadata takes."""


def damaged(kind: str, whole: bytes) -> bytes:
    """whole: the file's beginning, all of its metadata included"""
    match kind:
        case "empty":
            return b""
        case "cut after 100 bytes":
            return whole[:124]
        case "magic":
            return b"GGUE" + whole[4:]
        case "tensor count":
            return whole[:8] + struct.pack("<Q", 2**60) + whole[16:]
        case "key length":
            return whole[:24] + struct.pack("<Q", 2**63) + whole[32:]
        case "offset":
            return _with_last_tensor(whole, offset=2**40)
        case "type":
            return _with_last_tensor(whole, kind=4711)
        case _:
            return whole


LENGTHS = {"offset": 1.0, "type": 1.0, "cut at 60 %": 0.6}
"""Of the whole file. What is not its beginning is zeros, which cost no disk."""

NEEDS = r"tensor 'NAME' needs \d+ bytes up to offset \d+, but the file has \d+ bytes"
SAYS = {
    "empty": "the file has 0",
    "cut after 100 bytes": "at 124",
    "magic": "is not a GGUF file",
    "tensor count": f"{2**60} tensors",
    "key length": f"length of {2**63} bytes",
    "offset": NEEDS.replace("NAME", "output_norm.weight"),
    "type": "has the unknown type 4711",
    "cut at 60 %": NEEDS.replace("NAME", r"blk[.\w]+"),
}


def _with_last_tensor(whole: bytes, *, offset: int | None = None, kind: int | None = None) -> bytes:
    """The description of `output_norm.weight` with another offset or type."""
    name = b"output_norm.weight"
    place = whole.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
    dimensions = struct.unpack_from("<I", whole, place)[0]
    at = place + 4 + 8 * dimensions
    old_kind, old_offset = struct.unpack_from("<IQ", whole, at)
    new = struct.pack("<IQ", old_kind if kind is None else kind, offset or old_offset)
    return whole[:at] + new + whole[at + len(new) :]


@pytest.fixture(scope="module")
def write(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`write(kind)`: a copy of the model with that damage."""
    folder = tmp_path_factory.mktemp("damaged")
    size = model_path.stat().st_size
    with model_path.open("rb") as file:
        whole = file.read(BEGINNING_BYTES)

    def write(kind: str) -> Path:
        path = folder / f"{kind.replace(' ', '-')}.gguf"
        path.write_bytes(damaged(kind, whole))
        if kind in LENGTHS:
            os.truncate(path, int(size * LENGTHS[kind]))
        return path

    return write


@pytest.mark.parametrize("kind", SAYS)
def test_the_engine_does_not_start(
    write: Callable[[str], Path], kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(kind)
    assert main(["engine", "--port", "0", "--model", str(path)]) != 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert str(path) in said
    assert re.search(SAYS[kind], said)


def test_nothing_of_the_service_stays(write: Callable[[str], Path], tmp_path: Path) -> None:
    """Neither a gateway that looks ready, nor a process that tries again and again."""
    path = write("cut at 60 %")
    words = ["serve", "--port", "0", "--engine-port", "0", "--model", str(path)]
    ended = subprocess.run(
        [sys.executable, "-m", "fewer", *words],
        cwd=REPOSITORY, env={**os.environ, "XDG_STATE_HOME": str(tmp_path)}, text=True,
        capture_output=True, timeout=START_S, check=False,
    )  # fmt: skip
    assert ended.returncode != 0
    assert re.search(SAYS["cut at 60 %"], ended.stdout + ended.stderr)
    assert "Fewer is ready" not in ended.stdout
    assert "Traceback" not in ended.stdout + ended.stderr
