"""Rows as Markdown tables to read, and as JSON to keep."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Row

RESULTS = Path(__file__).parent / "results"


def table(rows: Sequence[Row]) -> str:
    """A Markdown table with the columns that any of the rows has, in the order they appear."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [
        f"| {' | '.join(column.replace('_', ' ') for column in columns)} |",
        f"|{'---|' * len(columns)}",
    ]
    lines += [f"| {' | '.join(_cell(row.get(column)) for column in columns)} |" for row in rows]
    return "\n".join(lines)


def section(name: str, meaning: str, rows: Sequence[Row]) -> str:
    return f"**{name}**: {meaning}\n\n{table(rows)}\n"


def about_line(about: dict[str, Any]) -> str:
    """What the figures were measured on, in one line."""
    parts = []
    for name, value in about.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {text}" for key, text in value.items())
        parts.append(f"{name.replace('_', ' ')}: {value}")
    return "; ".join(parts)


def save(name: str, content: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write a result beside earlier ones; one of the same name is replaced."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def _cell(value: str | int | float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else str(value)
