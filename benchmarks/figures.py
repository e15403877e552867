"""Figures from times: percentiles, the spread of a set of answers, and the same by length class."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from benchmarks.client import Answer

Row = dict[str, str | int | float | None]
"""One line of a table: figures and what they are of, by the names of the columns."""


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all do not exceed (nearest rank).

    Raises `ValueError` where there is no value.
    """
    if not values:
        raise ValueError("There is no percentile of nothing.")
    rank = max(1, math.ceil(len(values) * percent / 100))
    return sorted(values)[rank - 1]


def milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 1)


def median_ms(times_s: Sequence[float]) -> float:
    return milliseconds(statistics.median(times_s))


def latency(answers: Iterable[Answer]) -> Row:
    """Time to first token (TTFT) and the gaps between pieces of text (ITL), in milliseconds.

    A server that sends two tokens in one piece has one gap for both. Without answers, or with
    answers of one piece alone, what cannot be told is None.
    """
    answers = list(answers)
    first_s = [answer.first_s for answer in answers]
    gaps_s = [gap_s for answer in answers for gap_s in answer.gaps_s]
    row: Row = {"requests": len(answers)}
    for percent in (50, 95):
        row[f"ttft_p{percent}_ms"] = _percentile_ms(first_s, percent)
    for percent in (50, 95, 99):
        row[f"itl_p{percent}_ms"] = _percentile_ms(gaps_s, percent)
    row["longest_gap_ms"] = _percentile_ms(gaps_s, 100)
    return row


def _percentile_ms(times_s: Sequence[float], percent: float) -> float | None:
    return milliseconds(percentile(times_s, percent)) if times_s else None


def length_class(tokens: int, bounds: Sequence[int]) -> str:
    """The class of a prompt among those that `bounds`, their ascending upper ends, make."""
    lower = 1
    for upper in bounds:
        if tokens <= upper:
            return f"{lower:,} to {upper:,}"
        lower = upper + 1
    return f"over {bounds[-1]:,}"


def by_length(answers: Iterable[Answer], bounds: Sequence[int]) -> dict[str, list[Answer]]:
    """The answers of each class that has any, shortest prompts first."""
    classes: dict[str, list[Answer]] = {}
    for answer in sorted(answers, key=lambda answer: answer.prompt_tokens):
        classes.setdefault(length_class(answer.prompt_tokens, bounds), []).append(answer)
    return classes


def ratio(figure: Row, base: Row, name: str) -> float | None:
    """`figure` over `base`; None where either lacks the figure."""
    over, under = figure[name], base[name]
    if not isinstance(over, float) or not isinstance(under, float) or under == 0:
        return None
    return round(over / under, 2)
