"""Training a router from what two models made of the same prompts, in seconds on a CPU.

Each model's quality is a logistic regression on the embedding and the features of the prompt. It is
solved by Newton's method with a bound in place of the Hessian, which is the same for both models
and all steps (Boehning 1992). How much the embedding's weights are held back is chosen by
cross-validation: with few prompts, or where meanings say nothing, they come out as good as zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.protocol.errors import SetupError
from gateway.embedding import StaticEmbedding
from gateway.routing.outcomes import Numbers, Outcomes
from policies.features import NAMES, VERSION, abridged, features
from policies.router_model import FAR, SHARES, Feature, Head, RouterModel, Trained

FOLDS = 5
PENALTIES = (1.0, 4.0, 16.0, 64.0, 4096.0)
"""Of the embedding's squared weights, tried in this order; the last one leaves nothing of it."""

FEATURE_PENALTY = 30.0
STEPS = 40
NEAR = 1e-4
"""Steps end when no weight changes by as much: that is a thousandth of what matters."""

SEED = 1
DIGITS = 5
"""Significant ones of the numbers in a file."""


class Inputs:
    """What a router sees of prompts.

    embeddings: [prompts, dimensions]
    features:   [prompts, names]
    """

    def __init__(self, embeddings: Numbers, features: Numbers) -> None:
        self.embeddings = embeddings
        self.features = features

    @classmethod
    def seen(cls, prompts: Sequence[str], embed: StaticEmbedding) -> Inputs:
        texts = [abridged(prompt) for prompt in prompts]
        embeddings = np.array([embed(text) for text in texts], np.float64)
        return cls(embeddings, np.array([features(text) for text in texts], np.float64))

    def of(self, places: NDArray[np.intp]) -> Inputs:
        """Of the prompts at these places."""
        return Inputs(self.embeddings[places], self.features[places])


class Scale:
    """Means and deviations of the features, of some prompts."""

    def __init__(self, values: Numbers) -> None:
        self.mean = values.mean(axis=0)
        deviation = values.std(axis=0)
        # What is the same everywhere says nothing; elsewhere it must not count a million times.
        self.deviation = np.where(deviation > 1e-6, deviation, 1.0)

    def __call__(self, values: Numbers) -> Numbers:
        standard: Numbers = np.clip((values - self.mean) / self.deviation, -FAR, FAR)
        return standard


def train(outcomes: Outcomes, embed: StaticEmbedding, inputs: Inputs | None = None) -> RouterModel:
    """inputs: of the same prompts, where they are there already.

    Raises `SetupError` for outcomes that nothing can be learned from.
    """
    if not np.any(outcomes.gains):
        raise SetupError("Both models answer every prompt equally well: there is nothing to learn.")
    inputs = inputs or Inputs.seen(outcomes.prompts, embed)
    penalty, unseen = _choose(inputs, outcomes)
    everything = np.arange(len(outcomes))
    scale, weights = _fit(inputs, outcomes, everything, (penalty,))
    return _model(outcomes, embed, scale, weights[0], unseen)


def _choose(inputs: Inputs, outcomes: Outcomes) -> tuple[float, Numbers]:
    """A penalty, and the scores that it gives prompts that were left out of the training.

    It is the strictest one that is as good as the best, as far as the folds can tell (the rule of
    one standard error; Breiman et al. 1984).
    """
    order = np.random.default_rng(SEED).permutation(len(outcomes))
    losses = np.zeros((FOLDS, len(PENALTIES)))
    unseen = np.zeros((len(PENALTIES), len(outcomes)))
    for fold in range(FOLDS):
        left_out = order[fold::FOLDS]
        rest = np.setdiff1d(order, left_out)
        scale, weights = _fit(inputs, outcomes, rest, PENALTIES)
        for place, solution in enumerate(weights):
            qualities = _qualities(_matrix(inputs, scale, left_out), solution)
            losses[fold, place] = _loss(qualities, _targets(outcomes, left_out))
            unseen[place, left_out] = qualities[:, 1] - qualities[:, 0]
    worse = losses - losses[:, [np.argmin(losses.sum(axis=0))]]
    error = worse.std(axis=0, ddof=1) / np.sqrt(FOLDS)
    chosen = int(np.flatnonzero(worse.mean(axis=0) <= error)[-1])
    return PENALTIES[chosen], unseen[chosen]


def _fit(
    inputs: Inputs, outcomes: Outcomes, places: NDArray[np.intp], penalties: Sequence[float]
) -> tuple[Scale, list[Numbers]]:
    """For each penalty the weights of both models, [dimensions + features + 1, 2]."""
    scale = Scale(inputs.features[places])
    matrix, targets = _matrix(inputs, scale, places), _targets(outcomes, places)
    bound = matrix.T @ matrix / 4
    dimensions = inputs.embeddings.shape[1]
    solutions = []
    weights = np.zeros((matrix.shape[1], 2))
    for penalty in reversed(penalties):
        held = np.full(len(weights), FEATURE_PENALTY)
        held[:dimensions] = penalty
        held[-1] = 1e-6
        inverse = np.linalg.inv(bound + np.diag(held))
        for _ in range(STEPS):
            slope = matrix.T @ (targets - _qualities(matrix, weights)) - held[:, None] * weights
            step = inverse @ slope
            weights = weights + step
            if np.abs(step).max() < NEAR:
                break
        solutions.append(weights)
    return scale, solutions[::-1]


def _matrix(inputs: Inputs, scale: Scale, places: NDArray[np.intp]) -> Numbers:
    ones = np.ones((len(places), 1))
    return np.hstack([inputs.embeddings[places], scale(inputs.features[places]), ones])


def _targets(outcomes: Outcomes, places: NDArray[np.intp]) -> Numbers:
    return np.column_stack([outcomes.weak[places], outcomes.strong[places]])


def _qualities(matrix: Numbers, weights: Numbers) -> Numbers:
    """Expected of both models, [prompts, 2]."""
    qualities: Numbers = 1 / (1 + np.exp(-np.clip(matrix @ weights, -50, 50)))
    return qualities


def _loss(qualities: Numbers, targets: Numbers) -> float:
    """Cross entropy, summed over prompts and models."""
    shy = np.clip(qualities, 1e-9, 1 - 1e-9)
    return float(-(targets * np.log(shy) + (1 - targets) * np.log(1 - shy)).sum())


def _model(
    outcomes: Outcomes, embed: StaticEmbedding, scale: Scale, weights: Numbers, unseen: Numbers
) -> RouterModel:
    dimensions = embed.dimensions
    weak, strong = (
        Head(_short(column[-1]), list(map(_short, column[:dimensions]))) for column in weights.T
    )
    found = {
        name: Feature(*map(_short, (scale.mean[i], scale.deviation[i], *weights[dimensions + i])))
        for i, name in enumerate(NAMES)
    }
    return RouterModel(
        format="fewer-router",
        features_version=VERSION,
        embedding=embed.fingerprint,
        weak=weak,
        strong=strong,
        features=found,
        shares=sorted(map(_short, np.quantile(unseen, np.linspace(0, 1, SHARES)))),
        trained=Trained(
            prompts=len(outcomes),
            data=outcomes.digest,
            weak=_short(outcomes.weak.mean()),
            strong=_short(outcomes.strong.mean()),
        ),
    )


def _short(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")
