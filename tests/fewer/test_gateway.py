"""`fewer gateway` as a process of its own, without engines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.fakes.service import REPOSITORY


@pytest.mark.parametrize("workers", ["1", "2"])
def test_alone_it_says_where_it_serves(tmp_path: Path, workers: str) -> None:
    (tmp_path / "script.json").write_text('{"steps": [{"text": "Tokyo"}]}')
    config = tmp_path / "fewer.yaml"
    config.write_text("store: sqlite:keys.sqlite3\nmodels: {played: {scripted: script.json}}\n")
    command = [sys.executable, "-m", "fewer", "gateway", "--config", str(config), "--port", "0"]
    with subprocess.Popen(
        [*command, "--workers", workers],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=REPOSITORY,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        address = ""
        for line in process.stdout:
            _, told, address = line.strip().rstrip(".").partition("Serving at ")
            if told:
                break
        with urlopen(f"{address}/health/live", timeout=30) as response:
            assert response.status == 200
        process.terminate()
    assert process.returncode == 0
