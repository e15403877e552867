"""How far a sequence guesses: by what was right, and by what rows cost."""

from __future__ import annotations

import math

import numpy as np
import pytest

from engine.runner.base import Int32
from engine.speculate.balance import LEAST_GAIN, Balance
from engine.speculate.base import Proposer
from engine.speculate.drafter import MAX_DRAFT_TOKENS, Drafter

TOKENS = np.arange(10, dtype=np.int32)


class Counting(Proposer):
    """Says 1, 2, 3, … for ever, and counts how often it was asked."""

    def __init__(self, name: str = "counting", expected: float = 0.5) -> None:
        self.name, self.expected_acceptance = name, expected
        self.asked = 0

    def propose(self, tokens: Int32, prompt_tokens: int, most: int) -> list[int]:
        self.asked += 1
        return list(range(1, most + 1))


def free() -> Balance:
    return Balance(1, 0.0)


def draft(drafter: Drafter, balance: Balance | None = None, row_s: float = 0.0) -> list[int]:
    return drafter.draft(TOKENS, 4, balance or free(), row_s, 100)


# what pays ---------------------------------------------------------------------------------------


def test_a_free_row_needs_a_small_chance_only() -> None:
    assert free().length(LEAST_GAIN / 2, 0.0, 10) == 0
    assert free().length(0.5, 0.0, 10) == math.floor(math.log(LEAST_GAIN, 0.5))
    assert free().length(1.0, 0.0, 10) == 10


def test_a_single_stream_guesses_far_and_a_full_batch_not_at_all() -> None:
    """A step of 10 ms and 0.5 ms a row: alone, nine tenths of it wait for the weights."""
    assert Balance(1, 0.0105).length(0.9, 0.0005, 15) > 8
    assert Balance(1, 0.0105).length(0.3, 0.0005, 15) == 2
    assert Balance(64, 0.042).length(0.7, 0.0005, 15) == 0
    # Where the arithmetic is all that a step takes, no guess can be sure enough.
    assert Balance(64, 0.0319).length(0.99, 0.0005, 15) == 0


def test_what_one_sequence_adds_raises_the_bar_for_the_next() -> None:
    balance = Balance(4, 0.012)
    before = balance.length(0.7, 0.0005, 15)
    balance.add(0.95, 0.0005, 15)
    assert balance.length(0.7, 0.0005, 15) < before


# what was right ----------------------------------------------------------------------------------


def test_guesses_grow_while_they_are_right_and_stop_when_they_are_wrong() -> None:
    drafter = Drafter([Counting()])
    lengths = []
    for _ in range(10):
        lengths.append(len(draft(drafter)))
        drafter.verified(lengths[-1], 1, lengths[-1])
    assert lengths == sorted(lengths)
    assert lengths[-1] == MAX_DRAFT_TOKENS
    for _ in range(40):
        drafter.verified(len(draft(drafter)), 99, 0)
    assert draft(drafter) == []


def test_one_who_was_wrong_is_glanced_at_without_a_row_and_may_come_back() -> None:
    proposer = Counting(expected=0.01)
    drafter = Drafter([proposer])
    steps = 0
    while not draft(drafter):
        drafter.verified(0, 1, 0)
        steps += 1
        assert steps < 100
    assert proposer.asked < steps


def test_a_glance_that_was_wrong_keeps_it_out() -> None:
    drafter = Drafter([Counting(expected=0.01)])
    for _ in range(100):
        assert draft(drafter) == []
        drafter.verified(0, 99, 0)


def test_whoever_was_right_more_often_is_asked_first() -> None:
    better, worse = Counting("better", 0.6), Counting("worse", 0.55)
    drafter = Drafter([worse, better])
    assert draft(drafter)
    assert (better.asked, worse.asked) == (1, 0)
    assert drafter.verified(3, 9, 0) == "better"
    assert drafter.tally("better").rejected == 3
    assert drafter.tally("nobody").drafted == 0
    draft(drafter)
    assert (better.asked, worse.asked) == (1, 1)


def test_a_guess_that_found_no_room_teaches_nothing() -> None:
    drafter = Drafter([Counting()])
    draft(drafter)
    assert drafter.verified(0, 1, 0) is None
    assert drafter.tally("counting").drafted == 0


def test_rows_that_cost_too_much_are_not_asked_for() -> None:
    proposer = Counting(expected=0.9)
    assert draft(Drafter([proposer]), Balance(32, 0.032), row_s=0.001) == []
    assert proposer.asked == 0


@pytest.mark.parametrize("most", [0, 1, 7])
def test_no_more_is_guessed_than_there_is_room_for(most: int) -> None:
    drafted = Drafter([Counting(expected=1.0)]).draft(TOKENS, 4, free(), 0.0, most)
    assert len(drafted) == most
