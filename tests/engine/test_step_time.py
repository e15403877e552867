from __future__ import annotations

import math

import numpy as np
import pytest

from engine.step_time import StepTimeModel, reads_of


def fitted(
    base_s: float = 0.01, per_row_s: float = 0.001, per_read_s: float = 1e-6
) -> StepTimeModel:
    model = StepTimeModel()
    model.observe(1, 1, 30.0)
    random = np.random.default_rng(1)
    for _ in range(200):
        rows = int(random.integers(1, 512))
        reads = reads_of(int(random.integers(0, 4000)), rows)
        model.observe(rows, reads, base_s + per_row_s * rows + per_read_s * reads)
    return model


def test_nothing_is_predicted_before_anything_was_seen() -> None:
    model = StepTimeModel()
    assert model.predict_s(100, 1000) == 0.0
    assert model.rows_within(0.1, 10, 10, 0) == math.inf


def test_the_fit_finds_the_machine_and_forgets_the_warm_up() -> None:
    model = fitted()
    for rows, context in ((1, 100), (64, 2000), (512, 0)):
        reads = reads_of(context, rows)
        assert model.predict_s(rows, reads) == pytest.approx(
            0.01 + 0.001 * rows + 1e-6 * reads, rel=0.02
        )


@pytest.mark.parametrize("context", [0, 1000, 16000])
def test_rows_within_fills_the_limit(context: int) -> None:
    model = fitted()
    rows = int(model.rows_within(0.2, 10, reads_of(100, 10), context))

    def total_s(more: int) -> float:
        return model.predict_s(10 + more, reads_of(100, 10) + reads_of(context, more))

    assert total_s(rows) <= 0.2 < total_s(rows + 1)


def test_one_more_row_costs_its_share_and_its_context() -> None:
    assert StepTimeModel().row_s(1000) == 0.0
    assert fitted().row_s(1000) == pytest.approx(0.001 + 1e-6 * 1000, rel=0.02)


def test_no_rows_fit_where_the_limit_is_passed_already() -> None:
    assert fitted().rows_within(0.005, 10, 100, 0) == 0.0


def test_rows_without_attention_cost() -> None:
    model = fitted(per_read_s=0.0)
    model._per_read_s = 0.0
    assert model.rows_within(0.11, 0, 0, 50) == pytest.approx(100, rel=0.05)


def test_the_fit_follows_a_machine_that_changes() -> None:
    model = fitted()
    for rows in range(1, 400):
        model.observe(rows, rows, 0.02 + 0.002 * rows)
    assert model.predict_s(100, 100) == pytest.approx(0.22, rel=0.05)


def test_time_never_falls_with_work() -> None:
    model = StepTimeModel()
    for rows in range(1, 50):
        model.observe(rows, rows, 1.0 / rows)
    assert model.predict_s(100, 100) >= model.predict_s(1, 1) >= 0


def test_reads_count_query_and_key_pairs() -> None:
    assert reads_of(100, 1) == 101
    assert reads_of(0, 4) == 1 + 2 + 3 + 4
    assert reads_of(10, 3) == 11 + 12 + 13
