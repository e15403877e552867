"""Parameters that are absurd, or only just legal, beside a neighbour that must not notice."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from tests.e2e.stack import Stack, content, faces

pytestmark = pytest.mark.model

VOCABULARY = 49_152
STORY = "Tell a long story about a lighthouse."
NAN = float("nan")

BAD_BIASES: dict[str, dict[str, Any]] = {
    "the vocabulary's size": {str(VOCABULARY): 5},
    "beyond the vocabulary": {str(VOCABULARY + 10): -100},
    "negative": {"-1": 5},
    "no number": {"abc": 5},
    "a million million": {str(10**12): 5},
    "not a number": {"5": NAN},
    "a string": {"5": "x"},
    "400 entries": {str(id): 1 for id in range(400)},
}


@contextmanager
def healthy_stream(stack: Stack) -> Iterator[None]:
    """A greedy stream runs beside the block, and says what it says alone."""

    def story() -> str:
        return content(stack.stream(STORY, max_tokens=40, ignore_eos=True))

    alone = story()
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(story)
        yield
        assert beside.result() == alone


def test_a_token_outside_the_vocabulary_is_refused_by_name(stack: Stack) -> None:
    """B35: every key and value, by every way to the engine, before it reaches the scheduler."""
    accepted = stack.counter("requests_accepted_total")
    with healthy_stream(stack):
        for bias in BAD_BIASES.values():
            for face in faces(stack):
                for streamed in (False, True):
                    error = stack.refusal(logit_bias=bias, stream=streamed, max_tokens=1, **face)
                    assert error["param"] == "logit_bias"
                    assert error["type"] == "invalid_request_error"
    assert stack.counter("requests_accepted_total") == accepted + 2


LIKE_GREEDY: list[dict[str, Any]] = [
    {"temperature": 1e-4}, {"temperature": 1e-6}, {"temperature": 1e-38}, {"top_p": 1e-4},
    {"top_k": 1}, {"min_p": 1},
]  # fmt: skip
OFF: list[dict[str, Any]] = [{"top_k": 0}, {"top_k": -1}, {"top_k": 10**6}, {"min_p": 0}]
PENALTIES: list[dict[str, Any]] = [
    {},
    {"presence_penalty": 2, "frequency_penalty": 2},
    {"presence_penalty": -2, "frequency_penalty": -2},
]


def answers(stack: Stack, asked: list[dict[str, Any]]) -> list[str]:
    """All at once, each with logprobs, which must be numbers that JSON has."""
    with ThreadPoolExecutor(len(asked)) as pool:
        found = pool.map(
            lambda fields: stack.ask(
                max_tokens=6, seed=3, logprobs=True, top_logprobs=5, **{"temperature": 1, **fields}
            ),
            asked,
        )
        return [choice_text(answer) for answer in found]


def choice_text(answer: dict[str, Any]) -> str:
    (choice,) = answer["choices"]
    for token in choice["logprobs"]["content"]:
        for said in (token, *token["top_logprobs"]):
            assert -9999.0 <= said["logprob"] <= 0.0
    text: str = choice["message"]["content"]
    return text


@pytest.mark.parametrize("penalties", PENALTIES, ids=["none", "2", "-2"])
def test_tiny_values_are_greedy_and_change_no_neighbour(
    stack: Stack, penalties: dict[str, Any]
) -> None:
    """B41, and R29: whatever the values leave of the distribution, logprobs stay numbers."""
    (greedy,) = answers(stack, [{"temperature": 0, **penalties}])
    (plain,) = answers(stack, [penalties])
    with healthy_stream(stack):
        assert answers(stack, [fields | penalties for fields in LIKE_GREEDY]) == [greedy] * 6
        assert answers(stack, [fields | penalties for fields in OFF]) == [plain] * 4


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("temperature", -1e-38), ("temperature", NAN), ("top_p", 0), ("top_p", -1e-4),
        ("top_p", 1.0001), ("top_k", -2), ("min_p", -1e-38), ("min_p", 1.0001),
        ("presence_penalty", 2.0001), ("frequency_penalty", -2.0001),
    ],
)  # fmt: skip
def test_illegal_values_are_refused_by_name(stack: Stack, param: str, value: float) -> None:
    """B41."""
    for face in faces(stack):
        for others in ({}, PENALTIES[1] | {param: value}):
            error = stack.refusal(**{param: value, "max_tokens": 1} | others | face)
            assert error["param"] == param


def test_null_is_not_set(stack: Stack) -> None:
    """R19, by every way to the engine."""
    nulls: dict[str, Any] = dict.fromkeys(
        ("stop", "tools", "seed", "logit_bias", "top_p", "max_completion_tokens")
    )
    for face in faces(stack):
        assert stack.ask(max_tokens=2, **nulls, **face)["usage"]["completion_tokens"] == 2
