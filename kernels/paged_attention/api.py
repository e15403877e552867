"""Meaning and checks of paged attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kernels.dispatch import load
from kernels.shapes import check_same_kind, check_shape

if TYPE_CHECKING:
    from torch import Tensor

Integers = NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Sizes of one layer's K cache, which is [kv_heads, blocks, block_tokens, head_dim]; V's too.

    heads: of the queries; each key-value head serves heads / kv_heads of them
    """

    heads: int
    kv_heads: int
    blocks: int
    block_tokens: int
    head_dim: int

    def __post_init__(self) -> None:
        if min(self.heads, self.kv_heads, self.blocks, self.block_tokens, self.head_dim) < 1:
            raise ValueError(f"Every size must be at least 1: {self}.")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads cannot share {self.kv_heads} KV heads evenly.")


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """A step's segments, arranged by one implementation for its own use in every layer."""

    implementation: str
    shape: CacheShape
    rows: int
    arranged: Any


def plan_attention(
    query_start: Integers,
    context_len: Integers,
    block_table: Integers,
    shape: CacheShape,
    *,
    implementation: str = "reference",
) -> AttentionPlan:
    """Arrange S segments for attention.

    query_start: int[S + 1] from 0, not falling; segment s has the query rows
                 query_start[s] : query_start[s + 1]
    context_len: int[S]; the last query of segment s is at position context_len[s] - 1, the one
                 before it at context_len[s] - 2, and so on
    block_table: int[S, W]; block_table[s, i] holds the positions from i * block_tokens

    Raises ValueError where these contradict one another or leave the cache.
    """
    segments = len(context_len)
    if query_start.shape != (segments + 1,) or block_table.shape[:1] != (segments,):
        raise ValueError(
            f"query_start {query_start.shape}, context_len {context_len.shape} and block_table "
            f"{block_table.shape} do not describe the same segments."
        )
    counts = np.diff(query_start)
    if query_start[0] != 0 or (counts < 0).any():
        raise ValueError("query_start must begin at 0 and never fall.")
    if (context_len < counts).any():
        raise ValueError("context_len must count at least the segment's own queries.")
    _check_blocks(context_len * (counts > 0), block_table, shape)
    arranged = load("paged_attention", implementation).plan(
        query_start, context_len, block_table, shape
    )
    return AttentionPlan(implementation, shape, int(query_start[-1]), arranged)


def _check_blocks(context_len: Integers, block_table: Integers, shape: CacheShape) -> None:
    needed = -(-context_len // shape.block_tokens)
    if (needed > block_table.shape[1]).any():
        raise ValueError(
            f"block_table has {block_table.shape[1]} blocks a segment; {needed.max()} are needed."
        )
    used = block_table[np.arange(block_table.shape[1]) < needed[:, None]]
    if ((used < 0) | (used >= shape.blocks)).any():
        raise ValueError(f"block_table names blocks outside 0 to {shape.blocks - 1}.")


def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, plan: AttentionPlan, *, scale: float
) -> Tensor:
    """softmax(scale q K^T) V over each query's own positions up to and including its own.

    query:  [T, heads, D], the plan's rows first; rows beyond them give zeros
    caches: [kv_heads, blocks, block_tokens, D], with K and V of the queries already stored
    result: [T, heads, D]

    A row's bits depend on its own query and on K and V at its own positions: not on the other
    queries, on how the sequence was cut into chunks, on where its blocks lie, nor on what stands
    in slots that it does not own, NaN included. Raises ValueError for what does not fit the plan.
    """
    shape = plan.shape
    check_shape("query", query, (None, shape.heads, shape.head_dim))
    if query.shape[0] < plan.rows:
        raise ValueError(f"query has {query.shape[0]} rows; the plan is for {plan.rows}.")
    sizes = (shape.kv_heads, shape.blocks, shape.block_tokens, shape.head_dim)
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        check_shape(name, cache, sizes)
        check_same_kind("query", query, name, cache)
    result: Tensor = load("paged_attention", plan.implementation).attend(
        query, key_cache, value_cache, plan.arranged, scale
    )
    return result
