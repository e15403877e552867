from __future__ import annotations

import pytest
import torch

from kernels.linear import linear
from tests.kernels.reference_cases import assert_rows_independent, random

SIZES = [
    (576, 576),
    (192, 576),
    (1536, 576),
    (576, 1536),
    (64, 64),
    (96, 160),
    (1003, 72),
    (32, 80),
]


@pytest.mark.parametrize(("outputs", "inputs"), SIZES)
def test_rows_are_independent(outputs: int, inputs: int) -> None:
    x, weight, bias = random(200, inputs), random(outputs, inputs, seed=1), random(outputs, seed=2)
    assert_rows_independent(lambda rows: linear(x[rows], weight))
    assert_rows_independent(lambda rows: linear(x[rows], weight, bias))


def test_equals_float64() -> None:
    x, weight, bias = random(9, 96), random(40, 96, seed=1), random(40, seed=2)
    exact = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(linear(x, weight, bias).double(), exact, rtol=1e-5, atol=1e-5)


def test_no_rows() -> None:
    assert linear(random(0, 8), random(4, 8)).shape == (0, 4)


def test_bad_input() -> None:
    x, weight = random(3, 8), random(4, 8)
    with pytest.raises(ValueError, match=r"x must have the shape \(any, any\), not \(8\)"):
        linear(x[0], weight)
    with pytest.raises(ValueError, match=r"weight must have the shape \(any, 8\), not \(4, 7\)"):
        linear(x, weight[:, :7])
    with pytest.raises(ValueError, match=r"bias must have the shape \(4\)"):
        linear(x, weight, random(5))
    with pytest.raises(ValueError, match=r"x is torch.float32 on cpu, but weight is torch.float64"):
        linear(x, weight.double())
    with pytest.raises(ValueError, match=r"floating type, not torch\.int64"):
        linear(x.long(), weight.long())
    with pytest.raises(ValueError, match="linear has no implementation 'abacus'; choose from"):
        linear(x, weight, implementation="abacus")
