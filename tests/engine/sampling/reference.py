"""The sampling rule written as slowly and plainly as it can be, in float64 where allowed."""

from __future__ import annotations

import math

import numpy as np

from engine.runner.base import Float32, SampleRow
from engine.sampling.noise import noise_words


def reference_support(logits: Float32, row: SampleRow) -> dict[int, float]:
    """The tokens that may be drawn, each with its probability. Empty: none may."""
    adjusted = reference_adjusted(logits, row)
    best = max(adjusted)
    if best == -math.inf:
        return {}
    sampling = row.sampling
    if sampling.greedy:
        return {adjusted.index(best): 1.0}
    scaled = [
        float((np.float32(value) - np.float32(best)) / np.float32(sampling.temperature))
        for value in adjusted
    ]
    order = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    if sampling.top_k > 0:
        order = order[: sampling.top_k]
    if sampling.top_p < 1.0:
        order = _nucleus(order, scaled, sampling.top_p)
    order = [token for token in order if math.exp(scaled[token]) >= sampling.min_p]
    total = math.fsum(math.exp(scaled[token]) for token in order)
    return {token: math.exp(scaled[token]) / total for token in order}


def reference_token(logits: Float32, row: SampleRow) -> int:
    support = reference_support(logits, row)
    words = noise_words(row.seed, row.position, len(logits))
    best, best_score = -1, -math.inf
    for token in sorted(support):
        uniform = (int(words[token]) + 0.5) * 2.0**-32
        weight = support[token]
        score = (math.log(weight) if weight else -math.inf) - math.log(-math.log(uniform))
        if score > best_score:
            best, best_score = token, score
    return best


def reference_adjusted(logits: Float32, row: SampleRow) -> list[float]:
    sampling, output = row.sampling, [int(token) for token in row.output]
    seen = {*output, *(int(token) for token in row.prompt)}
    adjusted = []
    for token, raw in enumerate(logits):
        value = np.float32(raw)
        allowed = sampling.allowed_token_ids is None or token in sampling.allowed_token_ids
        ends = token in row.end_ids and len(output) < sampling.min_tokens
        masked = row.mask is not None and not int(row.mask[token // 32]) >> token % 32 & 1
        if masked or not allowed or token in sampling.bad_token_ids or ends:
            value = np.float32(-np.inf)
        value = value + np.float32(sampling.logit_bias.get(token, 0.0))
        if token in seen and sampling.repetition_penalty != 1.0:
            factor = np.float32(sampling.repetition_penalty)
            value = value / factor if value > 0 else value * factor
        if token in output:
            value = value - (
                np.float32(output.count(token)) * np.float32(sampling.frequency_penalty)
                + np.float32(sampling.presence_penalty)
            )
        adjusted.append(float(value))
    return adjusted


def _nucleus(order: list[int], scaled: list[float], top_p: float) -> list[int]:
    target = top_p * math.fsum(math.exp(scaled[token]) for token in order)
    mass = 0.0
    for count, token in enumerate(order, start=1):
        mass += math.exp(scaled[token])
        if mass >= target:
            return order[:count]
    return order
