"""Meaning and checks of `linear`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.dispatch import load
from kernels.shapes import check_same_kind, check_shape

if TYPE_CHECKING:
    from torch import Tensor


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, implementation: str = "reference"
) -> Tensor:
    """[M, K] x [N, K]^T (+ [N]) -> [M, N].

    Row m of the result is a function of row m of `x` alone, bit for bit: neither M nor the other
    rows matter. Raises ValueError for shapes or types that do not fit.
    """
    check_shape("x", x, (None, None))
    check_shape("weight", weight, (None, x.shape[1]))
    check_same_kind("x", x, "weight", weight)
    if bias is not None:
        check_shape("bias", bias, (weight.shape[0],))
        check_same_kind("x", x, "bias", bias)
    result: Tensor = load("linear", implementation).linear(x, weight, bias)
    return result
