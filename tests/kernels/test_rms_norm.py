from __future__ import annotations

import pytest
import torch

from kernels.rms_norm import rms_norm
from tests.kernels.reference_cases import assert_rows_independent, random


@pytest.mark.parametrize("width", [64, 80, 576, 4096])
def test_rows_are_independent(width: int) -> None:
    x, weight = random(200, width), random(width, seed=1)
    assert_rows_independent(lambda rows: rms_norm(x[rows], weight, 1e-5))


def test_equals_float64() -> None:
    x, weight = 30 * random(5, 3, 64), random(64, seed=1)
    wide = x.double()
    exact = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(rms_norm(x, weight, 1e-5).double(), exact, rtol=1e-6, atol=1e-6)


def test_zeros_stay_zeros() -> None:
    assert torch.equal(rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-6), torch.zeros(2, 8))


def test_half_precision_is_averaged_in_float32() -> None:
    x, weight = 300 * random(4, 64).half(), random(64, seed=1).half()
    result = rms_norm(x, weight, 1e-5)  # 300 squared overflows float16
    assert result.dtype == torch.float16
    assert torch.isfinite(result).all()


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"weight must have the shape \(8\), not \(7\)"):
        rms_norm(random(2, 8), random(7), 1e-5)
    with pytest.raises(ValueError, match="epsilon must not be negative"):
        rms_norm(random(2, 8), random(8), -1.0)
    with pytest.raises(ValueError, match=r"weight is torch.float64"):
        rms_norm(random(2, 8), random(8).double(), 1e-5)
