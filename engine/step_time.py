"""How long a step takes, fitted while it runs, and how many rows fit into a given time.

    seconds = base + per_row * rows + per_read * reads

`rows` are the tokens of the step, `reads` the (query, key) pairs that attention visits. The
three coefficients follow the machine by least squares with exponential forgetting.
"""

from __future__ import annotations

import math

import numpy as np

_FORGETTING = 0.98
"""Weight kept by a step when the next one is seen: about fifty steps of memory."""
_RIDGE = 1e-6
_READS_UNIT = 1e-3
"""Reads are counted in thousands, so that the normal equations stay well conditioned."""


def reads_of(start: int, rows: int) -> float:
    """(query, key) pairs of a chunk of `rows` tokens after `start` tokens already in KV."""
    return rows * (start + (rows + 1) / 2)


class StepTimeModel:
    """The fit. Predicts 0 until it has seen steps of its own."""

    def __init__(self) -> None:
        self._normal = np.eye(3) * _RIDGE
        self._moment = np.zeros(3)
        self._base_s = self._per_row_s = self._per_read_s = 0.0
        self.num_observed = 0

    def observe(self, rows: int, reads: float, seconds: float) -> None:
        """Learn from a step that ran."""
        self.num_observed += 1
        if self.num_observed == 1:
            # The first step pays for warming up caches and lazy set-up, and says nothing.
            return
        features = np.array([1.0, rows, reads * _READS_UNIT])
        self._normal = self._normal * _FORGETTING + np.outer(features, features)
        self._moment = self._moment * _FORGETTING + features * seconds
        fit = np.linalg.solve(self._normal + np.eye(3) * _RIDGE, self._moment)
        # Time cannot fall with work: noise that says so is cut off.
        base, per_row, per_read = (max(0.0, float(value)) for value in fit)
        self._base_s, self._per_row_s = base, per_row
        self._per_read_s = per_read * _READS_UNIT

    def predict_s(self, rows: int, reads: float) -> float:
        """Seconds that a step of this size takes."""
        return self._base_s + self._per_row_s * rows + self._per_read_s * reads

    def row_s(self, context: int) -> float:
        """Seconds that one more row takes, after `context` tokens of its sequence."""
        return self._per_row_s + self._per_read_s * context

    def rows_within(self, limit_s: float, rows: int, reads: float, context: int) -> float:
        """How many more rows of one chunk, after `context` tokens, keep a step within limit_s.

        `rows` and `reads` are what the step holds already. `math.inf` when nothing limits it.
        """
        spare_s = limit_s - self.predict_s(rows, reads)
        if spare_s <= 0:
            return 0.0
        # spare = (per_row + per_read * context) * x + per_read / 2 * x^2
        linear = self.row_s(context)
        square = self._per_read_s / 2
        if square > 0:
            return (math.sqrt(linear * linear + 4 * square * spare_s) - linear) / (2 * square)
        return spare_s / linear if linear > 0 else math.inf
