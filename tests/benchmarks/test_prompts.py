from __future__ import annotations

import pytest

from benchmarks.prompts import OPENING_TOKENS, Prompts


@pytest.mark.parametrize("tokens", [1, 4, 5, 999, 2500])
def test_prompts_have_exactly_the_length_asked_for(tokens: int) -> None:
    assert len(Prompts(range(1000)).draw(tokens)) == tokens


def test_no_two_prompts_begin_alike() -> None:
    prompts = Prompts(range(100_000))
    beginnings = {tuple(prompts.draw(64)[:16]) for _ in range(50)}
    assert len(beginnings) == 50


def test_behind_their_openings_prompts_repeat_from_run_to_run() -> None:
    one, other = (Prompts(range(1000)).draw(64)[OPENING_TOKENS:] for _ in range(2))
    assert one == other


def test_shared_prompts_part_where_they_should() -> None:
    one, other = Prompts(range(100_000)).draw_sharing(2, shared=48, own=16)
    assert one[:48] == other[:48]
    assert one[48:] != other[48:]
    assert len(one) == len(other) == 64


def test_lengths_hold_both_ends_and_repeat() -> None:
    lengths = Prompts([1]).lengths(3, 5, 200)
    assert set(lengths) == {3, 4, 5}
    assert lengths == Prompts([1]).lengths(3, 5, 200)


def test_an_empty_corpus_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        Prompts([])
