"""What each proposer guesses, given what was said."""

from __future__ import annotations

import numpy as np
import pytest

from engine.runner.base import Int32
from engine.speculate.base import Proposer
from engine.speculate.matching import LONGEST_MATCH, copying_chances, longest_matches
from engine.speculate.ngram import NgramProposer
from engine.speculate.prediction import PredictionProposer


def ids(text: str) -> Int32:
    return np.frombuffer(text.encode("utf-32-le"), np.int32)


def text_of(tokens: list[int]) -> str:
    return "".join(map(chr, tokens))


def guess(proposer: Proposer, prompt: str, output: str = "", most: int = 15) -> str:
    made = proposer.propose(ids(prompt + output), len(prompt), most)
    if made is None:
        return ""
    assert 0 < len(made.tokens) == len(made.chances) <= most
    assert all(0 < chance < 1 for chance in made.chances)
    return text_of(made.tokens)


@pytest.mark.parametrize(
    ("text", "ending", "where", "length"),
    [
        ("abcabd", "xab", [2, 5], 2),
        ("abcabd", "xcab", [5], 3),
        ("abcabd", "d", [6], 1),
        ("abcabd", "x", [], 0),
        ("abcabd", "", [], 0),
        ("", "a", [], 0),
        ("ab", "zab", [2], 2),
        ("你好吗你好", "说你好", [2, 5], 2),
    ],
)
def test_the_longest_ending_is_found_wherever_it_is(
    text: str, ending: str, where: list[int], length: int
) -> None:
    found, found_length = longest_matches(ids(text), ids(ending))
    assert (found.tolist(), found_length) == (where, length)


def test_a_long_agreement_is_not_followed_to_its_end() -> None:
    found, length = longest_matches(ids("ab" * 100), ids("ab" * 100))
    assert length == LONGEST_MATCH
    assert found[-1] == 200


# n-gram ------------------------------------------------------------------------------------------


def test_ngram_goes_on_as_the_latest_same_words_did() -> None:
    assert guess(NgramProposer(), "cat sat, cat ran, ", "a cat ")[:3] == "ran"


def test_ngram_prefers_a_longer_agreement_to_a_later_one() -> None:
    assert guess(NgramProposer(), "one two three. two four. ", "one two ").startswith("three")


def test_the_longer_the_agreement_the_surer_is_what_follows() -> None:
    two, many = copying_chances(2, 3), copying_chances(100, 15)
    assert two == sorted(two)
    assert len(many) == 15
    assert two[0] < 0.6 < 0.9 < many[0]


def test_ngram_goes_round_in_a_repetition() -> None:
    assert guess(NgramProposer(), "?", "abababab", most=5) == "ababa"


def test_ngram_says_nothing_where_nothing_agrees() -> None:
    assert guess(NgramProposer(), "abc") == ""
    assert guess(NgramProposer(), "a") == ""


# prediction --------------------------------------------------------------------------------------


def test_a_prediction_is_guessed_from_its_beginning() -> None:
    proposer = PredictionProposer(ids("hello world"))
    assert guess(proposer, "prompt", most=5) == "hello"
    assert guess(proposer, "prompt", "hello", most=3) == " wo"
    assert guess(proposer, "prompt", "hello world") == ""


def test_the_place_is_found_again_after_a_replacement() -> None:
    proposer = PredictionProposer(ids("the red car stopped at the light"))
    assert guess(proposer, "p", "the ", most=3) == "red"
    assert guess(proposer, "p", "the bl", most=3) != ""
    assert guess(proposer, "p", "the blue car st", most=5) == "opped"


def test_the_place_is_found_again_after_an_insertion_and_a_deletion() -> None:
    prediction = "alpha beta gamma delta epsilon"
    inserted = PredictionProposer(ids(prediction))
    assert guess(inserted, "p", "alpha new beta ga", most=3) == "mma"
    deleted = PredictionProposer(ids(prediction))
    assert guess(deleted, "p", "alpha gam", most=2) == "ma"


def test_of_places_that_agree_equally_the_nearest_is_taken() -> None:
    prediction = "x=1; y=2;" + "-" * 40 + "x=3; y=4;"
    proposer = PredictionProposer(ids(prediction))
    assert guess(proposer, "p", "x=7; ", most=4) == "y=2;"


def test_one_token_far_away_is_no_place() -> None:
    proposer = PredictionProposer(ids("abcdefgh" + "-" * 60 + "z!"))
    assert guess(proposer, "p", "abz", most=1) == "d"  # one token stood for another


def test_what_was_said_together_is_followed_token_by_token() -> None:
    proposer = PredictionProposer(ids("你好，世界。再见。"))
    said = ""
    for character in "你好，世界。":
        said += character
        guess(proposer, "p", said)
    assert guess(proposer, "p", said) == "再见。"
