"""What two models made of the same prompts: a CSV file, one prompt a line.

    prompt,weak,strong,weak_cost,strong_cost
    What is 17 * 23?,0,1,0.00002,0.0011
    法国的首都是哪里？,1,1,0.00001,0.0009

`weak` and `strong` are the quality of each model's answer: `true` or `false`, or a number from 0 to
1. The costs, in any unit, may be missing. Further columns are left alone. It is UTF-8, with or
without the byte order mark that spreadsheets write.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.protocol.errors import SetupError

MAX_FIELD_CHARS = 16 * 1024 * 1024
LEAST_PROMPTS = 50

_WORDS = {"true": 1.0, "false": 0.0}

Numbers = NDArray[np.float64]


class Columns(msgspec.Struct, frozen=True):
    """Names of the file's columns."""

    prompt: str = "prompt"
    weak: str = "weak"
    strong: str = "strong"
    weak_cost: str = "weak_cost"
    strong_cost: str = "strong_cost"


class Outcomes:
    """weak, strong: quality of the answers, [prompts]
    weak_cost, strong_cost: None where they are not known
    """

    def __init__(
        self,
        prompts: Sequence[str],
        weak: Numbers,
        strong: Numbers,
        weak_cost: Numbers | None = None,
        strong_cost: Numbers | None = None,
    ) -> None:
        self.prompts = list(prompts)
        self.weak = weak
        self.strong = strong
        self.weak_cost = weak_cost
        self.strong_cost = strong_cost

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def gains(self) -> Numbers:
        """Of the stronger model over the weaker, [prompts]."""
        return self.strong - self.weak

    @property
    def digest(self) -> str:
        """The same for the same prompts and qualities, in whatever order."""
        lines = sorted(
            f"{w!r} {s!r} {p}" for p, w, s in zip(self.prompts, self.weak, self.strong, strict=True)
        )
        text = "\0".join(lines).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, digest_size=16).hexdigest()

    def of(self, places: NDArray[np.intp]) -> Outcomes:
        """Those at these places."""
        costs = (
            None if cost is None else cost[places] for cost in (self.weak_cost, self.strong_cost)
        )
        prompts = [self.prompts[place] for place in places]
        return Outcomes(prompts, self.weak[places], self.strong[places], *costs)


def read_outcomes(path: Path, columns: Columns | None = None) -> Outcomes:
    """Raises `SetupError` that names the file, and the line that is wrong."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return parse_outcomes(str(path), file, columns or Columns())
    except OSError as error:
        raise SetupError(f"{path}: cannot be read: {error.strerror}.") from error


def parse_outcomes(path: str, file: Iterable[str], columns: Columns) -> Outcomes:
    """Like `read_outcomes`, of an open file. `path` is what messages call it."""
    csv.field_size_limit(MAX_FIELD_CHARS)
    try:
        return _read(path, csv.DictReader(file), columns)
    except (UnicodeDecodeError, csv.Error) as error:
        raise SetupError(f"{path}: is no CSV file in UTF-8: {error}.") from error


def _read(path: str, rows: csv.DictReader[str], columns: Columns) -> Outcomes:
    header = list(rows.fieldnames or ())
    wanted = {name: getattr(columns, name) for name in columns.__struct_fields__}
    for name in ("prompt", "weak", "strong"):
        if wanted[name] not in header:
            raise SetupError(
                f"{path}: has no column {wanted[name]!r}; it has {', '.join(header) or 'none'}."
            )
    numbers = [n for n, column in wanted.items() if n != "prompt" and column in header]
    prompts: list[str] = []
    found: dict[str, list[float]] = {name: [] for name in numbers}
    for row in rows:
        prompts.append(row[columns.prompt] or "")
        for name in numbers:
            found[name].append(_number(path, rows.line_num, wanted[name], row[wanted[name]], name))
    if len(prompts) < LEAST_PROMPTS:
        raise SetupError(
            f"{path}: has {len(prompts)} prompts; at least {LEAST_PROMPTS} are needed."
        )
    arrays = {name: np.array(values) for name, values in found.items()}
    if not {"weak_cost", "strong_cost"} <= arrays.keys():
        arrays.pop("weak_cost", None)
        arrays.pop("strong_cost", None)
    return Outcomes(prompts, **arrays)


def _number(path: str, line: int, column: str, text: str | None, name: str) -> float:
    """Of a field. `line` is where its row ends."""
    word = (text or "").strip().lower()
    try:
        number = _WORDS[word] if word in _WORDS else float(word)
    except ValueError:
        number = math.nan
    most = math.inf if name.endswith("cost") else 1.0
    if not (0 <= number <= most and math.isfinite(number)):
        allowed = "a number that is not negative" if most > 1 else "true, false, or 0 to 1"
        raise SetupError(f"{path}:{line}: {column} must be {allowed}, not {(text or '')[:40]!r}.")
    return number
