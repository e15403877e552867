"""Units that are kept or left out whole."""

from __future__ import annotations

from typing import Any

import pytest

from policies.turns import is_pinned, turns_of
from tests.fakes.conversations import calls, pinned, result, said, system, user


def test_calls_made_at_once_are_one_unit_with_all_their_results() -> None:
    turns = turns_of([
        system("s"), user("q"), calls("a", "b"), result("b", "2"), result("a", "1"), said("done"),
    ])  # fmt: skip
    assert turns.unit_of == [0, 1, 2, 2, 2, 3]
    assert turns.kinds == ["fixed", "user", "assistant", "assistant"]


def test_a_result_goes_with_its_call_wherever_it_stands() -> None:
    turns = turns_of([user("q"), calls("a"), user("hurry"), result("a", "1")])
    assert turns.unit_of == [0, 1, 2, 1]


def test_an_id_that_is_used_again_means_the_latest_call() -> None:
    turns = turns_of([user("q"), calls("a"), result("a", "1"), calls("a"), result("a", "2")])
    assert turns.unit_of == [0, 1, 1, 2, 2]


def test_a_result_of_no_call_begins_nothing_that_may_be_kept_alone() -> None:
    assert turns_of([user("q"), result("?", "1")]).unit_of == [0, 0]
    assert turns_of([system("s"), result("?", "1")]).unit_of == [0, 1]
    assert turns_of([result("?", "1")]).unit_of == [0]


def test_a_pinned_answer_keeps_its_question() -> None:
    turns = turns_of([user("1"), said("a"), user("2"), pinned(said("b")), user("3")])
    assert turns.kinds == ["user", "assistant", "fixed", "fixed", "user"]


def test_a_pinned_result_keeps_its_call_and_the_other_results() -> None:
    turns = turns_of([user("q"), calls("a", "b"), result("a", "1"), pinned(result("b", "2"))])
    assert (turns.unit_of, turns.kinds) == ([0, 1, 1, 1], ["fixed", "fixed"])


@pytest.mark.parametrize("metadata", [None, True, "pin", ["pin"], {"pin": "true"}, {"pin": 1}])
def test_only_true_pins(metadata: Any) -> None:
    assert not is_pinned({"role": "user", "content": "q", "metadata": metadata})


@pytest.mark.parametrize("tool_calls", [None, "a", [None], [{"id": 3}], [{}]])
def test_calls_of_a_wrong_shape_are_nobodys(tool_calls: Any) -> None:
    turns = turns_of([{"role": "assistant", "tool_calls": tool_calls}, result("a", "1")])
    assert turns.unit_of == [0, 0]
