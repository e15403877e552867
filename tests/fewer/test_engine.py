"""`fewer engine` as a process of its own, without a gateway."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.service import REPOSITORY

pytestmark = pytest.mark.model


def test_alone_it_says_how_to_be_let_in(model_path: Path, tmp_path: Path) -> None:
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    environ.pop("FEWER_ENGINE_TOKEN", None)
    command = [sys.executable, "-m", "fewer", "engine", "--port", "0", "--kv-cache-mb", "32"]
    with subprocess.Popen(
        [*command, "--max-model-len", "256", "--model", str(model_path)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=REPOSITORY, env=environ,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        told = ""
        for told in process.stdout:
            if "its token" in told:
                break
        process.terminate()
    token = tmp_path / "fewer" / "engine-token"
    assert f'-H "authorization: Bearer $(cat {token})"' in told
    assert token.read_text().strip() not in told
