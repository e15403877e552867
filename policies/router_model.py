"""A trained router: what a prompt gains from the stronger of two models.

Logistic regression over a static embedding of the prompt and a dozen numbers about its text:
elaborate routers seldom do better (LLMRouterBench, https://arxiv.org/abs/2601.07206).
`fewer route train` writes one as a JSON file of kilobytes. Reading it runs nothing that it says,
and scoring needs no library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import mul
from typing import Literal

import msgspec

from policies.features import NAMES, VERSION, abridged, features

MAX_BYTES = 256 * 1024
"""Of a file. The usual one has 10 kB."""

MAX_DIMENSIONS = 4096

_LIMIT = 1e6
"""No number of a file may be larger: sums of products stay finite."""

Embed = Callable[[str], Sequence[float]]


class Trained(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """On what, for people; and so that nobody takes its own prompts for a test.

    prompts: how many
    data:    `digest` of their outcomes
    weak, strong: mean quality of each model
    """

    prompts: int
    data: str
    weak: float
    strong: float


class RouterModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A router file, as it was read. `check` it before it is used.

    format:       of the file
    text:         version of `policies.features`
    embedding:    fingerprint of the embedding that it was trained with
    dimensions:   weights of the embedding's
    features:     by name: mean and standard deviation where it was trained, and weight
    bias:         with it, a score is a logit
    shares:       scores of prompts that it had not seen, at each hundredth: 101, ascending
    """

    format: Literal["fewer-router"]
    text: int
    embedding: str
    dimensions: list[float]
    features: dict[str, tuple[float, float, float]]
    bias: float
    shares: list[float]
    trained: Trained

    def score(self, embedding: Sequence[float], text: str) -> float:
        """Between 0 and 1: the higher, the more the stronger model is needed. The embedding is that
        of `abridged(text)`."""
        logit = self.bias + sum(map(mul, self.dimensions, embedding))
        for value, (mean, deviation, weight) in zip(
            features(text), map(self.features.__getitem__, NAMES), strict=True
        ):
            logit += (value - mean) / deviation * weight
        return 1 / (1 + math.exp(-max(-50.0, min(50.0, logit))))

    def threshold(self, strong_share: float) -> float:
        """The score that about so large a share of prompts like those it was trained on reach."""
        place = (1 - strong_share) * (len(self.shares) - 1)
        below = math.floor(place)
        above = min(below + 1, len(self.shares) - 1)
        return self.shares[below] + (place - below) * (self.shares[above] - self.shares[below])


def read(data: bytes) -> RouterModel:
    """Raises `ValueError` that says what is wrong, in a clause."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"has {len(data)} bytes, and a router at most {MAX_BYTES}")
    try:
        model = msgspec.json.decode(data, type=RouterModel)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"is no router file: {error}") from error
    check(model)
    return model


def check(model: RouterModel) -> None:
    """Raises `ValueError` that says what is wrong, in a clause."""
    if model.text != VERSION or tuple(sorted(model.features)) != tuple(sorted(NAMES)):
        raise ValueError("was trained by another version of fewer; train it again")
    if not 0 < len(model.dimensions) <= MAX_DIMENSIONS:
        raise ValueError(f"has {len(model.dimensions)} dimensions")
    if len(model.shares) != 101 or list(model.shares) != sorted(model.shares):
        raise ValueError("must have 101 shares in ascending order")
    numbers = [*model.dimensions, model.bias, *model.shares]
    for mean, deviation, weight in model.features.values():
        numbers += [mean, deviation, weight]
        if not deviation > 0:
            raise ValueError("has a feature without a deviation")
    if not all(abs(number) <= _LIMIT for number in numbers):
        raise ValueError("holds a number that is none, or too large")


class Router(msgspec.Struct, frozen=True):
    """A model and the embedding that goes with it, whose fingerprint was compared."""

    model: RouterModel
    embed: Embed

    def score(self, text: str) -> float:
        """See `RouterModel.score`. Pure, as `embed` is."""
        text = abridged(text)
        return self.model.score(self.embed(text), text)
