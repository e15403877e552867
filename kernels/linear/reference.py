"""`linear` with torch's matrix product."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

ROW_MULTIPLE = 8
"""Fewer rows than this take other code paths in the BLAS, which sum in another order.

Found by trying: with MKL and 1 to 16 threads, every multiple of 8 rows gives the bits of 512
rows, as long as K is a multiple of 8; rows 1 to 3 differ always, 5 to 11 with two threads.
"""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = x.shape[0]
    missing = -rows % ROW_MULTIPLE
    if missing:
        x = torch.cat((x, x.new_zeros(missing, x.shape[1])))
    return functional.linear(x, weight, bias)[:rows]
