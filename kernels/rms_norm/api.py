"""Meaning and checks of `rms_norm`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.dispatch import load
from kernels.shapes import check_same_kind, check_shape

if TYPE_CHECKING:
    from torch import Tensor


def rms_norm(
    x: Tensor, weight: Tensor, epsilon: float, *, implementation: str = "reference"
) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last dimension. [..., W], [W] -> [..., W].

    The mean is taken in float32. Each row is independent, bit for bit.
    Raises ValueError for shapes or types that do not fit, or an epsilon below 0.
    """
    check_shape("weight", weight, (x.shape[-1] if x.ndim else None,))
    check_same_kind("x", x, "weight", weight)
    if epsilon < 0:
        raise ValueError(f"epsilon must not be negative, not {epsilon}.")
    result: Tensor = load("rms_norm", implementation).rms_norm(x, weight, epsilon)
    return result
