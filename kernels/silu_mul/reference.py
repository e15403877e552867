"""`silu_mul` from operations whose bits do not depend on an element's place."""

from __future__ import annotations

from torch import Tensor


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    # torch's own silu and sigmoid compute the last elements of a range with another exp than the
    # rest, so that a value's bits would depend on where it stands in the batch.
    return gate / ((-gate).exp() + 1.0) * up
