"""Meaning and checks of `silu_mul`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.dispatch import load
from kernels.shapes import check_same_kind, check_shape

if TYPE_CHECKING:
    from torch import Tensor


def silu_mul(gate: Tensor, up: Tensor, *, implementation: str = "reference") -> Tensor:
    """gate * sigmoid(gate) * up, element by element, for equal shapes.

    An element's bits depend on its own two inputs only.
    Raises ValueError for shapes or types that do not fit.
    """
    check_shape("up", up, tuple(gate.shape))
    check_same_kind("gate", gate, "up", up)
    result: Tensor = load("silu_mul", implementation).silu_mul(gate, up)
    return result
