"""Meaning and checks of `kv_store`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.dispatch import load
from kernels.shapes import check_same_kind, check_shape

if TYPE_CHECKING:
    from torch import Tensor


def kv_store(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    *,
    implementation: str = "reference",
) -> None:
    """Put row t of `key` and `value` into slot `slots[t]` of the caches, in place.

    key, value: [T, KV, D]
    caches:     [KV, blocks, block_tokens, D]; slot = block * block_tokens + offset
    slots:      int64[T], each in range and none twice

    Raises ValueError for shapes or types that do not fit.
    """
    check_shape("key", key, (None, None, None))
    rows, kv_heads, head_dim = key.shape
    check_shape("value", value, (rows, kv_heads, head_dim))
    check_shape("slots", slots, (rows,))
    check_same_kind("key", key, "value", value)
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        check_shape(name, cache, (kv_heads, None, None, head_dim))
        check_same_kind("key", key, name, cache)
        if not cache.is_contiguous():
            raise ValueError(f"{name} must be contiguous.")
    load("kv_store", implementation).kv_store(key, value, key_cache, value_cache, slots)
