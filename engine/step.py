"""What the scheduler decides and the executor runs."""

from __future__ import annotations

from engine.sequence import Sequence
from engine.step_time import reads_of


class Step:
    """One step under construction: segments in batch order, and what it cost to make room.

    segments: tokens to compute for each sequence, guesses included
    started:  sequences that run for the first time
    """

    __slots__ = ("budget", "num_preempted", "reads", "segments", "started")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.segments: dict[Sequence, int] = {}
        self.started: list[Sequence] = []
        self.num_preempted = 0
        self.reads = 0.0

    def add(self, sequence: Sequence, tokens: int) -> None:
        """Compute so many more tokens of a sequence."""
        already = self.segments.get(sequence, 0)
        self.segments[sequence] = already + tokens
        self.budget -= tokens
        self.reads += reads_of(sequence.num_computed + already, tokens)

    def reject(self, sequence: Sequence, tokens: int) -> None:
        """The step ran, and the last so many tokens of a sequence turned out not to be its own."""
        self.segments[sequence] -= tokens

    def drop(self, sequence: Sequence) -> None:
        """A victim leaves the step before it ran."""
        tokens = self.segments.pop(sequence, 0)
        self.budget += tokens
        self.reads -= reads_of(sequence.num_computed, tokens)

    @property
    def rows(self) -> int:
        return sum(self.segments.values())

    def __bool__(self) -> bool:
        return bool(self.segments)
