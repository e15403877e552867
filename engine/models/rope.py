"""Rotary position embeddings: which angle each pair of a head turns at each position.

RoFormer (Su et al. 2021) rotates pair i at position p by p * theta ** (-2i / D). Longer windows
come from slower rotation: `linear` divides all angles, YaRN (Peng et al. 2023) divides those of
the slow pairs only, Llama 3 stores a divisor for each pair in the file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.models.metadata import Metadata

_YARN_UNSUPPORTED = (
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
)


@dataclass(frozen=True, slots=True)
class Yarn:
    """factor: how much longer the window became; original_tokens: what it was trained with.

    Pairs that turn more than `beta_fast` times within the original window keep their angle, those
    that turn less than `beta_slow` times are slowed by `factor`, between them it is blended.
    """

    factor: float
    original_tokens: int
    beta_fast: float
    beta_slow: float


@dataclass(frozen=True, slots=True)
class RopeOptions:
    """theta: the base; linear_factor: divides every angle; has_divisors: the file holds some."""

    theta: float
    linear_factor: float = 1.0
    yarn: Yarn | None = None
    has_divisors: bool = False

    @classmethod
    def from_metadata(cls, metadata: Metadata, context: int, has_divisors: bool) -> RopeOptions:
        theta = metadata.positive("rope.freq_base", 10000.0)
        if theta <= 1:
            raise metadata.refuse("rope.freq_base", "a base above 1 is needed")
        # A file with a factor and no type means linear, as in llama.cpp.
        kind = metadata.get("rope.scaling.type", "linear")
        if kind == "none":
            return cls(theta, has_divisors=has_divisors)
        if kind == "linear":
            factor = metadata.positive("rope.scaling.factor", 1.0)
            return cls(theta, linear_factor=factor, has_divisors=has_divisors)
        if kind != "yarn":
            raise metadata.refuse("rope.scaling.type", "none, linear and yarn are supported")
        for key in _YARN_UNSUPPORTED:
            if metadata.get(key) is not None:
                raise metadata.refuse(key, "YaRN is supported without it")
        factor = metadata.positive("rope.scaling.factor")
        return cls(
            theta,
            yarn=Yarn(
                factor,
                metadata.count(
                    "rope.scaling.original_context_length", max(1, int(context / factor))
                ),
                metadata.positive("rope.scaling.yarn_beta_fast", 32.0),
                metadata.positive("rope.scaling.yarn_beta_slow", 1.0),
            ),
            has_divisors=has_divisors,
        )


def rope_tables(
    options: RopeOptions, head_dim: int, context: int, divisors: NDArray[np.float32] | None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """cos and sin, each float32[context, head_dim / 2].

    divisors: float32[head_dim / 2] of the file, where `options.has_divisors`
    """
    frequency = options.theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    scale = 1.0
    if divisors is not None:
        frequency /= divisors
    if options.yarn is not None:
        frequency *= _yarn_slowdown(options.yarn, options.theta, head_dim)
        # The temperature of the paper's equation 22, folded into the rotation of Q and K.
        scale = 0.1 * math.log(options.yarn.factor) + 1.0 if options.yarn.factor > 1 else 1.0
    # Angles reach the context length; float32 would lose the fraction that matters.
    angles = np.arange(context, dtype=np.float64)[:, None] * (frequency / options.linear_factor)
    return (scale * np.cos(angles)).astype(np.float32), (scale * np.sin(angles)).astype(np.float32)


def _yarn_slowdown(yarn: Yarn, theta: float, head_dim: int) -> NDArray[np.float64]:
    """What each pair's frequency is multiplied by: from 1 (fast) down to 1 / factor (slow)."""

    def pair_turning(times: float) -> float:
        wavelength_ratio = yarn.original_tokens / (times * 2 * math.pi)
        return head_dim * math.log(wavelength_ratio) / (2 * math.log(theta))

    low = max(math.floor(pair_turning(yarn.beta_fast)), 0)
    high = min(math.ceil(pair_turning(yarn.beta_slow)), head_dim - 1)
    ramp = (np.arange(head_dim // 2) - low) / max(high - low, 0.001)
    slow = np.clip(ramp, 0.0, 1.0)
    return slow / yarn.factor + (1.0 - slow)
