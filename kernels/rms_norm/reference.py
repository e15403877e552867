"""`rms_norm`, step by step."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    mean_square = wide.square().mean(-1, keepdim=True)
    # sqrt and division are exactly rounded wherever they run; rsqrt is not.
    return (wide / (mean_square + epsilon).sqrt()).to(x.dtype) * weight
