"""Counts of guesses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """drafted: tokens that steps verified; accepted: those that were right."""

    drafted: int = 0
    accepted: int = 0

    @property
    def rejected(self) -> int:
        return self.drafted - self.accepted

    def add(self, drafted: int, accepted: int) -> None:
        self.drafted += drafted
        self.accepted += accepted
