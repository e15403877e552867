from __future__ import annotations

import pytest
import torch

from kernels.kv_store import kv_store
from tests.kernels.reference_cases import random


def test_each_row_goes_to_its_slot_and_nothing_else_changes() -> None:
    caches = random(2, 3, 5, 16, 8)  # (K and V, KV heads, blocks, block tokens, head dim)
    before = caches.clone()
    key, value, slots = random(4, 3, 8, seed=1), random(4, 3, 8, seed=2), [79, 0, 17, 33]
    kv_store(key, value, caches[0], caches[1], torch.tensor(slots))
    expected = before
    for row, slot in enumerate(slots):
        expected[0, :, slot // 16, slot % 16] = key[row]
        expected[1, :, slot // 16, slot % 16] = value[row]
    assert torch.equal(caches, expected)


def test_bad_input() -> None:
    key, cache, slots = random(4, 3, 8), random(3, 5, 16, 8), torch.arange(4)
    with pytest.raises(ValueError, match=r"value must have the shape \(4, 3, 8\)"):
        kv_store(key, key[:3], cache, cache, slots)
    with pytest.raises(ValueError, match=r"slots must have the shape \(4\), not \(3\)"):
        kv_store(key, key, cache, cache, slots[:3])
    with pytest.raises(ValueError, match=r"key_cache must have the shape \(3, any, any, 8\)"):
        kv_store(key, key, cache[:2], cache, slots)
    with pytest.raises(ValueError, match=r"value_cache is torch\.float64"):
        kv_store(key, key, cache, cache.double(), slots)
    with pytest.raises(ValueError, match="key_cache must be contiguous"):
        kv_store(key, key, cache.transpose(1, 2), cache, slots)
