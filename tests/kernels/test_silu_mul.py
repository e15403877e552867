from __future__ import annotations

import pytest
import torch

from kernels.silu_mul import silu_mul
from tests.kernels.reference_cases import assert_rows_independent, random


@pytest.mark.parametrize("width", [96, 1536, 37])
def test_rows_are_independent(width: int) -> None:
    gate, up = 4 * random(200, width), random(200, width, seed=1)
    assert_rows_independent(lambda rows: silu_mul(gate[rows], up[rows]))


def test_equals_float64() -> None:
    gate, up = 10 * random(50, 96), random(50, 96, seed=1)
    exact = torch.nn.functional.silu(gate.double()) * up.double()
    torch.testing.assert_close(silu_mul(gate, up).double(), exact, rtol=1e-6, atol=1e-7)


def test_far_from_zero() -> None:
    gate = torch.tensor([[-1e4, -200.0, 0.0, 200.0, 1e4]])
    expected = torch.tensor([[0.0, 0.0, 0.0, 200.0, 1e4]])
    assert torch.equal(silu_mul(gate, torch.ones(1, 5)), expected)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"up must have the shape \(2, 8\), not \(2, 7\)"):
        silu_mul(random(2, 8), random(2, 7))
    with pytest.raises(ValueError, match=r"up is torch.float64"):
        silu_mul(random(2, 8), random(2, 8).double())
