"""Bounds of rates, and pairs that are close and different."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from benchmarks.close_pairs import chinese, chinese_paraphrases, english, is_told, statements
from benchmarks.semantic import distinct, judge, upper_bound
from gateway.embedding import Vector

QUESTIONS = [
    "Is Ada Lovelace known for her garden in London?",
    "What happens when Alan Turing opens the old window?",
    "Can people walk over burning stones?",
]


@pytest.mark.parametrize(
    ("wrong", "count", "confidence", "bound"),
    [
        (0, 1000, 0.95, 1 - 0.05 ** (1 / 1000)),
        (0, 30, 0.975, 0.11570),
        (1, 10, 0.975, 0.44502),
        (5, 50, 0.975, 0.21814),
        (10, 10, 0.95, 1.0),
    ],
)
def test_bounds_are_clopper_and_pearsons(
    wrong: int, count: int, confidence: float, bound: float
) -> None:
    assert upper_bound(wrong, count, confidence=confidence) == pytest.approx(bound, abs=2e-5)


def test_every_kind_of_change_is_made_of_questions() -> None:
    pairs = list(english(QUESTIONS))
    kinds = {pair.kind for pair in pairs}
    assert kinds == {
        "number", "number word", "negation", "opposite or asking word", "name", "thing",
    }  # fmt: skip
    assert all(pair.one != pair.other for pair in pairs)


def test_statements_are_changed_in_one_place() -> None:
    said = ["The `add` method is used to put a column into the Arrow table of the dataset."]
    for pair in statements([*said, "The Parquet files are not read by the `load` function."]):
        before, after = Counter(pair.one.split()), Counter(pair.other.split())
        assert (before - after).total() == (after - before).total() == 1


def test_chinese_pairs_are_many_and_differ() -> None:
    pairs = list(chinese())
    assert len(pairs) > 2000
    assert all(pair.one != pair.other for pair in pairs)
    assert all(one != other for one, other in chinese_paraphrases())
    told = sum(pair.is_told for pair in pairs) / len(pairs)
    assert 0.4 < told < 0.6


def test_a_text_is_always_in_the_same_half() -> None:
    assert is_told("a") == is_told("a")
    assert {is_told(str(number)) for number in range(20)} == {True, False}


def embed(text: str) -> Vector:
    """All texts are alike."""
    return np.array([1, 0], np.float32)


def test_a_hit_needs_both_similarity_and_the_same_words() -> None:
    assert judge("Is it 30?", "Is it thirty?", embed).hit
    assert not judge("Is it 30?", "Is it 31?", embed).hit
    assert judge("Is it 30?", "Is it 31?", embed).similar
    assert [each.hit for each in distinct(["Is it 30?", "Is it 31?"], embed)] == [False]
