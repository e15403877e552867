"""The command itself, once, with the real model: what it starts ends, what it finds is kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from benchmarks.service import StartError
from benchmarks.stack import configuration, serving

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.model
def test_one_command_measures_a_stack_of_its_own(model_path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.engine", "--only", "prefill", "--repeats", "1"]
    command += ["--model", str(model_path), "--threads", "1", "--results", str(tmp_path)]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert "**prefill**" in run.stdout
    results = json.loads((tmp_path / "engine.json").read_text())
    assert results["about"]["weights"] == "Q4_1"
    assert results["about"]["threads"] == 1
    (row,) = results["tables"]["prefill"]
    assert row["prompt_tokens"] == 1024
    assert row["tokens_per_s"] == pytest.approx(1024 / row["ttft_ms"] * 1000, rel=0.01)
    before, after = results["tables"]["footprint"]
    assert after["engine_mb"] >= before["engine_mb"] > 50


def test_a_stack_is_the_repository_s_own_but_for_what_is_changed() -> None:
    ours = yaml.safe_load((REPOSITORY / "fewer.yaml").read_text())
    made = yaml.safe_load(configuration({"threads": 1}))
    assert made["routes"] == ours["routes"]
    assert made["engine"] == {**ours["engine"], "threads": 1}
    assert made["store"] == "sqlite:keys.sqlite3"


def test_a_stack_that_does_not_start_says_why() -> None:
    with pytest.raises(StartError, match="nowhere"), serving("/nowhere/model.gguf"):
        pass
