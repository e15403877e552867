from __future__ import annotations

import json
from pathlib import Path

from benchmarks.report import about_line, save, section, table


def test_a_table_has_every_column_that_any_row_has() -> None:
    assert table([{"a_ms": 1.5, "n": 12_000}, {"a_ms": None, "note": "x"}]) == (
        "| a ms | n | note |\n|---|---|---|\n| 1.5 | 12,000 | – |\n| – | – | x |"
    )


def test_a_section_says_what_its_table_means() -> None:
    assert section("decode", "one stream", [{"n": 1}]).startswith("**decode**: one stream\n\n| n |")


def test_facts_are_one_line() -> None:
    line = about_line({"cores": 2, "load_1min": 0.1, "versions": {"numpy": "2", "uvloop": "1"}})
    assert line == "cores: 2; load 1min: 0.1; versions: numpy 2, uvloop 1"


def test_results_are_kept_as_json(tmp_path: Path) -> None:
    path = save("engine", {"rows": [1]}, tmp_path / "results")
    assert path.name == "engine.json"
    assert json.loads(path.read_text()) == {"rows": [1]}
