"""`kv_store` by indexed copies."""

from __future__ import annotations

from torch import Tensor


def kv_store(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
) -> None:
    for rows, cache in ((key, key_cache), (value, value_cache)):
        cache.flatten(1, 2).index_copy_(1, slots, rows.transpose(0, 1))
