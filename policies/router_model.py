"""A trained router: what a prompt is expected to gain from the stronger of two models.

Two logistic regressions, one for each model, say how well it will answer; the difference is the
gain. They see a static embedding of the prompt and a dozen numbers about its text. More elaborate
routers seldom do better (LLMRouterBench, https://arxiv.org/abs/2601.07206). `fewer route train`
writes one as a JSON file of kilobytes. Reading it runs nothing, and scoring needs no library.
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

SHARES = 101
"""Scores of a model's `shares`, one for each hundredth and both ends."""

FAR = 3.0
"""Deviations from the mean that a number counts at most. What hardly differs in the training, as
the script where all prompts are English, must not decide about all others."""

_MOST = 1e6
"""No number of a file may be larger, so that sums of products stay finite."""

Embed = Callable[[str], Sequence[float]]


class Trained(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What it was trained on, for people, and so that nobody tests it on the same prompts.

    prompts: how many
    data:    digest of their outcomes
    weak, strong: mean quality of each model's answers
    """

    prompts: int
    data: str
    weak: float
    strong: float


class Feature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """mean, deviation: of the number, on the prompts of the training
    weak, strong: weights of the number once it is brought to mean 0 and deviation 1
    """

    mean: float
    deviation: float
    weak: float
    strong: float


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model's regression, but for the features. dimensions: weights of the embedding's."""

    bias: float
    dimensions: list[float]

    def logit(self, embedding: Sequence[float]) -> float:
        return self.bias + math.fsum(map(mul, self.dimensions, embedding))


class RouterModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A router file. `check` it before it is used.

    features_version: `policies.features.VERSION` of the training
    embedding:        fingerprint of the embedding of the training
    features:         by name
    shares:           scores of prompts that it had not seen, at each hundredth of them, ascending
    """

    format: Literal["fewer-router"]
    features_version: int
    embedding: str
    weak: Head
    strong: Head
    features: dict[str, Feature]
    shares: list[float]
    trained: Trained

    def score(self, embedding: Sequence[float], text: str) -> float:
        """The expected gain, -1 to 1. The embedding is that of `abridged(text)`."""
        weak, strong = self.weak.logit(embedding), self.strong.logit(embedding)
        for name, value in zip(NAMES, features(text), strict=True):
            feature = self.features[name]
            standard = max(-FAR, min(FAR, (value - feature.mean) / feature.deviation))
            weak += standard * feature.weak
            strong += standard * feature.strong
        return _logistic(strong) - _logistic(weak)

    def threshold(self, strong_share: float) -> float:
        """The score that about so large a share reaches, of prompts like those of the training."""
        place = (1 - strong_share) * (SHARES - 1)
        below = math.floor(place)
        above = min(below + 1, SHARES - 1)
        return self.shares[below] + (place - below) * (self.shares[above] - self.shares[below])


class Router(msgspec.Struct, frozen=True):
    """A model together with the embedding that it was trained with."""

    model: RouterModel
    embed: Embed

    def score(self, text: str) -> float:
        """See `RouterModel.score`. Pure, as `embed` is."""
        text = abridged(text)
        return self.model.score(self.embed(text), text)


def read(data: bytes) -> RouterModel:
    """Raises `ValueError` with what is wrong, as the rest of a sentence about the file."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"is no router file: it has more than {MAX_BYTES // 1024} kB")
    try:
        model = msgspec.json.decode(data, type=RouterModel)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"is no router file: {error}") from error
    _check(model)
    return model


def _check(model: RouterModel) -> None:
    if model.features_version != VERSION or set(model.features) != set(NAMES):
        raise ValueError("was trained by another version of fewer; train it again")
    if not 0 < len(model.weak.dimensions) <= MAX_DIMENSIONS:
        raise ValueError(f"has {len(model.weak.dimensions)} dimensions")
    if len(model.strong.dimensions) != len(model.weak.dimensions):
        raise ValueError("has heads of different dimensions")
    if len(model.shares) != SHARES or model.shares != sorted(model.shares):
        raise ValueError(f"needs {SHARES} shares in ascending order")
    numbers = [*model.shares]
    for head in (model.weak, model.strong):
        numbers += [head.bias, *head.dimensions]
    for feature in model.features.values():
        numbers += [feature.mean, 1 / feature.deviation if feature.deviation else math.inf]
        numbers += [feature.deviation, feature.weak, feature.strong]
    if not all(abs(number) <= _MOST for number in numbers):
        raise ValueError("holds a number that is too large")


def _logistic(logit: float) -> float:
    return 1 / (1 + math.exp(-max(-50.0, min(50.0, logit))))
