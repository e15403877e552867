"""How far a sequence guesses: by what was right, and by what rows cost."""

from __future__ import annotations

import numpy as np
import pytest

from engine.runner.base import Int32
from engine.speculate.balance import LEAST_GAIN, Balance
from engine.speculate.base import Guess, Proposer
from engine.speculate.drafter import MAX_DRAFT_TOKENS, Drafter
from engine.speculate.trust import Trust

TOKENS = np.arange(10, dtype=np.int32)


class Counting(Proposer):
    """Says 1, 2, 3, … for ever, and counts how often it was asked."""

    def __init__(self, name: str = "counting", chance: float = 0.5) -> None:
        self.name, self._chance = name, chance
        self.asked = 0

    def propose(self, tokens: Int32, prompt_tokens: int, most: int) -> Guess | None:
        self.asked += 1
        return Guess(list(range(1, most + 1)), [self._chance] * most)


def free() -> Balance:
    return Balance(1, 0.0)


def alone() -> Balance:
    """A step of 10 ms of which the weights are nine tenths; a row more takes 1 ms."""
    return Balance(1, 0.010)


def draft(drafter: Drafter, balance: Balance | None = None, row_s: float = 0.0) -> list[int]:
    return drafter.draft(TOKENS, 4, balance or free(), row_s, 100)


# what pays ---------------------------------------------------------------------------------------


def test_a_free_row_needs_a_small_chance_only() -> None:
    assert free().length([LEAST_GAIN / 2], 0.0) == 0
    assert free().length([0.5] * 10, 0.0) == 4
    assert free().length([0.999] * 10, 0.0) == 10


def test_a_single_stream_guesses_far_and_a_full_batch_not_at_all() -> None:
    """A step of 10 ms and 0.5 ms a row: alone, nine tenths of it wait for the weights."""
    assert Balance(1, 0.0105).length([0.9] * 15, 0.0005) > 8
    assert Balance(1, 0.0105).length([0.3] * 15, 0.0005) == 2
    assert Balance(64, 0.042).length([0.7] * 15, 0.0005) == 0
    # Where the arithmetic is all that a step takes, no guess can be sure enough.
    assert Balance(64, 0.0319).length([0.99] * 15, 0.0005) == 0


def test_what_one_sequence_adds_raises_the_bar_for_the_next() -> None:
    balance = Balance(4, 0.012)
    before = balance.length([0.7] * 15, 0.0005)
    balance.add([0.95] * 15, 0.0005)
    assert balance.length([0.7] * 15, 0.0005) < before


# what was right ----------------------------------------------------------------------------------


def test_trust_comes_to_what_is_true() -> None:
    trust, random = Trust(), np.random.default_rng(1)
    seen = []
    for _ in range(600):
        seen.append(trust.of(0.5))
        trust.observe(seen[-1], right=bool(random.random() < 0.9))
    assert 0.8 < np.mean(seen[100:]) < 0.97
    assert trust.of(0.2) < trust.of(0.8) < 1


def test_trust_is_neither_lost_nor_won_for_ever() -> None:
    trust = Trust()
    for _ in range(10_000):
        trust.observe(trust.of(0.5), right=False)
    low = trust.of(0.5)
    for _ in range(120):
        trust.observe(trust.of(0.5), right=True)
    assert low < 0.05 < 0.5 < trust.of(0.5)


def test_guesses_grow_while_they_are_right_and_stop_when_they_are_wrong() -> None:
    drafter = Drafter([Counting()])
    lengths = []
    for _ in range(20):
        lengths.append(len(draft(drafter, alone(), 0.001)))
        drafter.verified(lengths[-1], lengths[-1], first=1)
    assert lengths == sorted(lengths)
    assert lengths[0] < 5
    assert MAX_DRAFT_TOKENS >= lengths[-1] > 10
    for _ in range(120):
        drafter.verified(len(draft(drafter, alone(), 0.001)), 0, first=99)
    assert draft(drafter, alone(), 0.001) == []


def test_one_who_was_wrong_is_compared_without_a_row_and_may_come_back() -> None:
    drafter = Drafter([Counting(chance=0.02)])
    steps = 0
    while not draft(drafter, alone(), 0.001):
        drafter.verified(0, 0, first=1)
        steps += 1
        assert steps < 30
    assert drafter.tally("counting").drafted == 0


def test_whoever_is_surer_speaks_and_the_other_is_compared() -> None:
    one, other = Counting("one", 0.5), Counting("other", 0.6)
    drafter = Drafter([one, other])
    assert draft(drafter)
    assert drafter.verified(3, 0, first=99) == "other"
    assert drafter.tally("other").rejected == 3
    assert drafter.tally("one").drafted == drafter.tally("nobody").drafted == 0


def test_a_guess_that_found_no_room_is_compared_like_any_other() -> None:
    drafter = Drafter([Counting()])
    draft(drafter)
    assert drafter.verified(0, 0, first=1) is None
    assert drafter.tally("counting").drafted == 0


def test_rows_that_hardly_any_guess_is_worth_are_not_asked_for() -> None:
    proposer = Counting(chance=0.99)
    assert draft(Drafter([proposer]), Balance(32, 0.032), row_s=0.001) == []
    assert proposer.asked == 0


@pytest.mark.parametrize("most", [0, 1, 7])
def test_no_more_is_guessed_than_there_is_room_for(most: int) -> None:
    drafted = Drafter([Counting(chance=0.999)]).draft(TOKENS, 4, free(), 0.0, most)
    assert len(drafted) == most
