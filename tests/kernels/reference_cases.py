"""What the kernel tests share: random tensors, and the check that rows are independent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

BATCHES = (1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 16, 24, 33, 64, 200)
THREADS = (1, 2, 4)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def assert_rows_independent(operation: Callable[[Tensor], Tensor], rows: int = 200) -> None:
    """`operation` of an int64[N] choice of rows gives each row the bits it has among all."""
    generator = torch.Generator().manual_seed(1)
    with threads(1):
        expected = operation(torch.arange(rows))
    for count in THREADS:
        with threads(count):
            for size in BATCHES:
                chosen = torch.randperm(rows, generator=generator)[:size]
                actual = operation(chosen)
                assert torch.equal(actual, expected[chosen]), (count, size)
