"""Sampling parameters: neutral by default, and each range refused by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.protocol.errors import InvalidRequest
from engine.protocol.sampling import (
    MAX_LOGIT_BIAS_ENTRIES,
    MAX_STOP_STRINGS,
    MAX_TOKEN_LIST,
    Sampling,
)

INFINITY = float("inf")
NAN = float("nan")


def test_the_defaults_are_valid_and_cost_nothing_on_the_wire() -> None:
    Sampling().validate(10)
    assert msgspec.json.encode(Sampling()) == b"{}"


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (1e-38, True), (1e-4, False)])
def test_tiny_temperatures_are_greedy(temperature: float, greedy: bool) -> None:
    sampling = Sampling(temperature=temperature)
    sampling.validate()
    assert sampling.greedy is greedy


@pytest.mark.parametrize(
    "fields",
    [
        {"top_p": 1e-4}, {"top_p": 1}, {"min_p": 0}, {"min_p": 1}, {"top_k": -1}, {"top_k": 10**6},
        {"presence_penalty": -2}, {"frequency_penalty": 2}, {"repetition_penalty": 1e-3},
        {"logit_bias": {9: 100, 0: -100}}, {"allowed_token_ids": [0], "bad_token_ids": [1]},
        {"stop": ["x" * 256]}, {"logprobs": 20}, {"min_tokens": 5},
    ],
)  # fmt: skip
def test_legal_edges(fields: dict[str, Any]) -> None:
    Sampling(**fields).validate(10)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"), ({"temperature": NAN}, "temperature"),
        ({"temperature": INFINITY}, "temperature"), ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"), ({"top_p": NAN}, "top_p"), ({"min_p": -0.1}, "min_p"),
        ({"min_p": 1.1}, "min_p"), ({"top_k": -2}, "top_k"), ({"top_k": 2**31}, "top_k"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {10: 1}}, "logit_bias"), ({"logit_bias": {-1: 1}}, "logit_bias"),
        ({"logit_bias": {1: NAN}}, "logit_bias"), ({"logit_bias": {1: 101}}, "logit_bias"),
        ({"logit_bias": dict.fromkeys(range(MAX_LOGIT_BIAS_ENTRIES + 1), 1)}, "logit_bias"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [10]}, "allowed_token_ids"),
        ({"allowed_token_ids": [1, 2], "bad_token_ids": [1, 2]}, "allowed_token_ids"),
        ({"bad_token_ids": [-1]}, "bad_token_ids"),
        ({"stop_token_ids": [1] * (MAX_TOKEN_LIST + 1)}, "stop_token_ids"),
        ({"stop": [""]}, "stop"), ({"stop": ["x" * 257]}, "stop"),
        ({"stop": ["x"] * (MAX_STOP_STRINGS + 1)}, "stop"),
        ({"logprobs": 21}, "top_logprobs"), ({"logprobs": -1}, "top_logprobs"),
        ({"min_tokens": -1}, "min_tokens"),
    ],
)  # fmt: skip
def test_illegal_values_name_their_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Sampling(**fields).validate(10)
    assert caught.value.param == param
    assert caught.value.message.endswith(".")


def test_bad_token_ids_are_reported_together_and_shortened() -> None:
    sampling = Sampling(logit_bias=dict.fromkeys(range(8, 30), 1.0))
    with pytest.raises(InvalidRequest, match=r"10, 11, .*17, …"):
        sampling.validate(10)


def test_without_a_vocabulary_token_ids_are_only_integers() -> None:
    Sampling(logit_bias={2**31 - 1: 1}, stop_token_ids=[49152]).validate()
    with pytest.raises(InvalidRequest):
        Sampling(stop_token_ids=[2**31]).validate()
