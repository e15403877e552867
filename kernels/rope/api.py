"""Meaning and checks of `rope`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.dispatch import load
from kernels.shapes import check_same_kind, check_shape

if TYPE_CHECKING:
    from torch import Tensor


def rope(x: Tensor, cos: Tensor, sin: Tensor, *, implementation: str = "reference") -> Tensor:
    """Rotate element i of each head with element i + D/2. [T, H, D], [T, D/2] twice -> [T, H, D].

    cos, sin: of each row's angles. Raises ValueError for shapes or types that do not fit.
    """
    check_shape("x", x, (None, None, None))
    rows, _, head_dim = x.shape
    if head_dim % 2:
        raise ValueError(f"A head of {head_dim} values cannot be rotated in pairs.")
    for name, table in (("cos", cos), ("sin", sin)):
        check_shape(name, table, (rows, head_dim // 2))
        check_same_kind("x", x, name, table)
    result: Tensor = load("rope", implementation).rope(x, cos, sin)
    return result
