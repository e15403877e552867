from __future__ import annotations

import pytest
import torch

from kernels.rope import rope
from tests.kernels.reference_cases import assert_rows_independent, random


def test_rotates_each_pair_by_its_angle() -> None:
    x, angles = random(6, 2, 16), random(6, 8, seed=1)
    pairs = torch.complex(x[..., :8].double(), x[..., 8:].double())
    turned = pairs * torch.exp(1j * angles.double())[:, None]
    exact = torch.cat((turned.real, turned.imag), -1)
    torch.testing.assert_close(
        rope(x, angles.cos(), angles.sin()).double(), exact, rtol=1e-6, atol=1e-6
    )


def test_rows_are_independent() -> None:
    x, angles = random(200, 3, 80), random(200, 40, seed=1)
    cos, sin = angles.cos(), angles.sin()
    assert_rows_independent(lambda rows: rope(x[rows], cos[rows], sin[rows]))


def test_bad_input() -> None:
    x, angles = random(6, 2, 16), random(6, 8)
    with pytest.raises(ValueError, match=r"x must have the shape \(any, any, any\)"):
        rope(x[0], angles, angles)
    with pytest.raises(ValueError, match=r"cos must have the shape \(6, 8\), not \(5, 8\)"):
        rope(x, angles[:5], angles)
    with pytest.raises(ValueError, match=r"sin must have the shape \(6, 8\), not \(6, 4\)"):
        rope(x, angles, angles[:, :4])
    with pytest.raises(ValueError, match="head of 15 values"):
        rope(x[..., :15], angles, angles)
