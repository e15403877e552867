"""Reading a router's file, whoever wrote it, and scoring with it."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.features import MAX_CHARS, NAMES, VERSION
from policies.router_model import (
    MAX_BYTES,
    SHARES,
    Feature,
    Head,
    Router,
    RouterModel,
    Trained,
    read,
)


def a_model(weak: list[float] | None = None, **features: Feature) -> RouterModel:
    """Whose stronger model is right in half of all cases, and the weaker one by these weights."""
    dimensions = weak or [0.0]
    neutral = Feature(0.0, 1.0, 0.0, 0.0)
    return RouterModel(
        format="fewer-router",
        features_version=VERSION,
        embedding="e",
        weak=Head(0.0, dimensions),
        strong=Head(0.0, [0.0] * len(dimensions)),
        features={name: features.get(name, neutral) for name in NAMES},
        shares=[i / (SHARES - 1) for i in range(SHARES)],
        trained=Trained(100, "d", 0.4, 0.5),
    )


def written(**changes: Any) -> bytes:
    fields = msgspec.to_builtins(a_model()) | changes
    return json.dumps(fields).encode()


def test_what_was_written_is_read() -> None:
    assert read(msgspec.json.encode(a_model([0.5, -1.25]))) == a_model([0.5, -1.25])


def test_a_score_is_the_expected_gain() -> None:
    model = a_model([2.0, -1.0], tokens=Feature(3.0, 2.0, -1.0, 0.5))
    standard = (math.log1p(2) - 3.0) / 2.0
    weak = 2.0 * 0.5 - 1.0 * 0.25 - standard
    strong = 0.5 * standard
    expected = 1 / (1 + math.exp(-strong)) - 1 / (1 + math.exp(-weak))
    assert model.score([0.5, 0.25], "你") == pytest.approx(expected)


def test_the_embedding_sees_as_much_as_the_features_do() -> None:
    seen: list[str] = []

    def embed(text: str) -> list[float]:
        seen.append(text)
        return [0.0]

    Router(a_model(), embed).score("长" * 100_000)
    assert [len(text) for text in seen] == [MAX_CHARS]


@pytest.mark.parametrize(
    ("share", "threshold"), [(0.0, 1.0), (0.3, 0.7), (0.305, 0.695), (1.0, 0.0)]
)
def test_a_share_of_strong_calls_is_a_threshold(share: float, threshold: float) -> None:
    assert a_model().threshold(share) == pytest.approx(threshold)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is no router file"),
        (b"\x80\x04\x95", "is no router file"),  # how a pickle begins
        (b"[" * 100_000, "is no router file"),
        (b" " * (MAX_BYTES + 1), "more than 256 kB"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "missing required field `format`"),
        (written(format="other"), "Invalid enum value 'other'"),
        (written(more=1), "unknown field `more`"),
        (written(features_version=VERSION + 1), "another version of fewer"),
        (written(features={}), "another version of fewer"),
        (written(weak={"bias": 0, "dimensions": []}), "has 0 dimensions"),
        (written(weak={"bias": 0, "dimensions": [0] * 5000}), "has 5000 dimensions"),
        (written(weak={"bias": 0, "dimensions": [0, 0]}), "different dimensions"),
        (written(weak={"bias": 0, "dimensions": ["1"]}), "Expected `float`, got `str`"),
        (written(weak={"bias": 1e300, "dimensions": [0]}), "too large"),
        (written(shares=[0.0]), "shares in ascending order"),
        (written(shares=[1.0, *[0.0] * (SHARES - 1)]), "shares in ascending order"),
        (written().replace(b'"bias": 0.0', b'"bias": NaN'), "is no router file"),
        (written().replace(b'"bias": 0.0', b'"bias": 1e999'), "is no router file|too large"),
        (written().replace(b'"deviation": 1.0', b'"deviation": 0.0'), "too large"),
        (written().replace(b'"deviation": 1.0', b'"deviation": 1e-300'), "too large"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read(data)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with pytest.raises(
        ValueError, match=r"no router file|another version|shares|too large|dimensions"
    ):
        read(data)


@given(st.text(max_size=400), st.lists(st.floats(-1, 1), min_size=2, max_size=2))
def test_a_score_is_finite_whatever_the_text(text: str, embedding: list[float]) -> None:
    model = a_model([1e6, -1e6], digits=Feature(-1e6, 1e-6, 1e6, -1e6))
    assert -1 <= model.score(embedding, text) <= 1


def test_models_are_plain_values() -> None:
    assert replace(a_model(), embedding="other") != a_model()
