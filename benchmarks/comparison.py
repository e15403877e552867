"""Figures of several engines as rows, each beside ours of the same kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.contenders import Contender
from benchmarks.figures import Row
from benchmarks.jobs import CONTESTS, Job, Reply, medians

OURS = "fewer"
SHARE_OF_QUIET = "of its quiet speed"


@dataclass(slots=True)
class Entry:
    """What was measured of one contender.

    start_s:     from the start of its process to its first token
    resident_mb: right after that; peak_mb: the most that it ever had
    replies:     by work, one of each round
    """

    contender: Contender
    version: str
    start_s: float
    resident_mb: float
    peak_mb: float = 0.0
    replies: dict[str, list[tuple[Job, Reply]]] = field(default_factory=dict)

    def figures(self, work: str) -> dict[str, float]:
        """Medians by metric; beside a busy process also the share of the speed without one."""
        found = medians(CONTESTS[work], self.replies[work])
        if work == "crowded" and "decode" in self.replies:
            quiet = medians(CONTESTS["decode"], self.replies["decode"])["tokens/s"]
            found[SHARE_OF_QUIET] = round(found["tokens/s"] / quiet, 2)
        return found


def rows(entries: Sequence[Entry], facts: Mapping[str, Any], our_weights: str) -> list[Row]:
    """Each figure of each peer, and ours, with `our_weights`, that was reached the same way."""
    found: list[Row] = []
    for work in CONTESTS:
        mine = {
            entry.contender.through: entry.figures(work)
            for entry in entries
            if entry.contender.engine == OURS
            and entry.contender.weights == our_weights
            and work in entry.replies
        }
        for entry in entries:
            if work in entry.replies and entry.contender.engine != OURS:
                our_figures = mine.get(entry.contender.through, {})
                found += _compared(work, entry, our_figures, our_weights, facts)
    return found


def _compared(
    work: str,
    entry: Entry,
    mine: Mapping[str, float],
    our_weights: str,
    facts: Mapping[str, Any],
) -> Iterator[Row]:
    concurrency = entry.replies[work][0][0].concurrency
    for metric, figure in entry.figures(work).items():
        our_figure = mine.get(metric)
        yield {
            "work": work,
            "model": facts["model"],
            "in_/_out_tokens": CONTESTS[work].lengths,
            "at_once": concurrency,
            "threads": facts["threads"],
            "engine": entry.version,
            "through": entry.contender.through,
            "its_weights": entry.contender.weights,
            "our_weights": our_weights,
            "metric": metric,
            "it": figure,
            "ours": our_figure,
            "ours_over_it": None if our_figure is None else round(our_figure / figure, 2),
        }


def rounds(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """What the medians are made of: every figure of every round."""
    return [
        {
            "engine": entry.version,
            "through": entry.contender.through,
            "weights": entry.contender.weights,
            "figures": {
                work: [CONTESTS[work].figures(job, reply) for job, reply in replies]
                for work, replies in entry.replies.items()
            },
        }
        for entry in entries
    ]


def footprints(entries: Sequence[Entry]) -> list[Row]:
    """Start and memory of every contender."""
    return [
        {
            "engine": entry.version,
            "through": entry.contender.through,
            "weights": entry.contender.weights,
            "start_to_first_token_s": entry.start_s,
            "resident_after_it_mb": entry.resident_mb,
            "peak_mb": entry.peak_mb,
        }
        for entry in entries
    ]
