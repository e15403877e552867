"""Paged attention in torch, exact in the sense of `api.paged_attention`.

The softmax is taken in two passes: the maximum is exact in any order; the sums go tile by tile
from position 0, each tile in an operation of fixed shape. Masked positions weigh exactly 0, and
adding 0 changes nothing, so it does not matter how many of them a group brings along.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels.paged_attention.api import CacheShape, Integers
from kernels.paged_attention.grouping import TILE_TOKENS, Group, group_queries

_ROW_MULTIPLE = 8
"""Matrix products with fewer rows sum in another order; see `kernels.linear.reference`."""


@dataclass(frozen=True, slots=True)
class _Arranged:
    """A `Group` as tensors, with C = context positions, padded to whole tiles.

    rows:   int64[B, R]
    blocks: int64[B * W]
    filled: int64[N], targets: int64[N], the rows they belong to
    bias:   float32[B, R, C], -inf at positions after the query's own, else 0
    stale:  int64[P], which of the B * W blocks hold slots that the item does not own
    unowned: bool[P, block_tokens, 1], which slots of theirs
    """

    rows: Tensor
    blocks: Tensor
    filled: Tensor
    targets: Tensor
    bias: Tensor
    stale: Tensor
    unowned: Tensor


def plan(
    query_start: Integers, context_len: Integers, block_table: Integers, shape: CacheShape
) -> list[_Arranged]:
    if TILE_TOKENS % shape.block_tokens:
        raise ValueError(f"Blocks of {shape.block_tokens} tokens do not divide {TILE_TOKENS}.")
    groups = group_queries(query_start, context_len, block_table, shape)
    return [_arrange(group, shape) for group in groups]


def _arrange(group: Group, shape: CacheShape) -> _Arranged:
    rows, positions = torch.from_numpy(group.rows), torch.from_numpy(group.positions)
    filled = torch.from_numpy(group.filled)
    key_positions = torch.arange(group.blocks.shape[1] * shape.block_tokens)
    bias = torch.zeros(*rows.shape, len(key_positions))
    bias.masked_fill_(key_positions > positions[:, :, None], -torch.inf)
    owned = torch.from_numpy(group.owned).flatten()
    stale = (owned < shape.block_tokens).nonzero().flatten()
    return _Arranged(
        rows=rows,
        blocks=torch.from_numpy(group.blocks).flatten(),
        filled=filled,
        targets=rows.flatten()[filled],
        bias=bias,
        stale=stale,
        unowned=(torch.arange(shape.block_tokens) >= owned[stale, None])[:, :, None],
    )


def attend(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, arranged: list[_Arranged], scale: float
) -> Tensor:
    result = torch.zeros_like(query)
    for group in arranged:
        mixed = _attend_group(query, key_cache, value_cache, group, scale)
        result.index_copy_(0, group.targets, mixed[group.filled])
    return result


def _attend_group(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, group: _Arranged, scale: float
) -> Tensor:
    """[B * R, heads, D]. In the comments G is the number of query heads on one KV head."""
    kv_heads, head_dim = key_cache.shape[0], key_cache.shape[3]
    items, rows, context = group.bias.shape
    shared = query.shape[1] // kv_heads

    queries = query[group.rows].mul_(scale).view(items, rows, kv_heads, shared, head_dim)
    queries = queries.permute(2, 0, 1, 3, 4)  # (KV, B, R, G, D)
    if rows * shared % _ROW_MULTIPLE:
        padded = -(-shared // _ROW_MULTIPLE) * _ROW_MULTIPLE
        queries = functional.pad(queries, (0, 0, 0, padded - shared))
    heads_shape = queries.shape[:-1]  # (KV, B, R, G padded)
    queries = queries.reshape(kv_heads * items, -1, head_dim)

    keys = _gather(key_cache, group).view(kv_heads * items, context, head_dim)
    values = _gather(value_cache, group).view(kv_heads * items, context, head_dim)
    scores = torch.bmm(queries, keys.transpose(1, 2)).view(*heads_shape, context)
    scores += group.bias[:, :, None, :]
    weights = scores.sub_(scores.amax(-1, keepdim=True)).exp_()
    # cumsum adds one after the other, whatever their number; sum does not.
    total = weights.view(*heads_shape, -1, TILE_TOKENS).sum(-1).cumsum(-1)[..., -1:]

    weights = weights.view(kv_heads * items, -1, context)
    mixed = torch.zeros_like(queries)
    for start in range(0, context, TILE_TOKENS):
        tile = slice(start, start + TILE_TOKENS)
        mixed.baddbmm_(weights[:, :, tile], values[:, tile])
    mixed = mixed.view(*heads_shape, head_dim).div_(total)[..., :shared, :]
    return mixed.permute(1, 2, 0, 3, 4).reshape(items * rows, -1, head_dim)


def _gather(cache: Tensor, group: _Arranged) -> Tensor:
    """[KV, B * W, block_tokens, D], with zeros in slots that the items do not own.

    Whatever stands there weighs nothing, but a NaN would survive even that.
    """
    pages = cache.flatten(2).index_select(1, group.blocks).view(len(cache), -1, *cache.shape[2:])
    cleaned = pages[:, group.stale].masked_fill_(group.unowned, 0.0)
    return pages.index_copy_(1, group.stale, cleaned)
