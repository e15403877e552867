"""What the benchmark of routers reads, and what its intervals mean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.router import _interval, gsm8k, mmlu


def test_contaminated_prompts_are_left_out(shared_data: Callable[[str], Path]) -> None:
    folder = shared_data("routellm")
    grade_school, exams = gsm8k(folder), mmlu(folder)
    assert (len(grade_school), len(exams)) == (654, 7655)
    assert grade_school.strong.mean() == pytest.approx(0.859, abs=0.001)
    assert exams.weak.mean() == pytest.approx(0.703, abs=0.001)


def test_an_interval_for_other_prompts_is_wider_than_one_for_other_splits() -> None:
    difference = np.array([0.01, 0.02, 0.03, 0.02, 0.02])
    splits, prompts = (_interval(difference, weight) for weight in (1 / 5, 1 / 5 + 1))
    assert splits == (0.011, 0.029)
    assert prompts[0] < splits[0] < splits[1] < prompts[1]
