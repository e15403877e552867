"""Queries that can be computed together: same number of rows, about the same context.

One group is one set of batched matrix products. Its sizes come from a short list, so that a
thousand different steps run the same few shapes; what a group pads is masked and changes no bit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels.paged_attention.api import CacheShape, Integers

TILE_TOKENS = 64
"""Context is taken in tiles of this many positions, counted from position 0."""
QUERY_ROWS = (1, 8, 16, 32, 64)
"""A segment's queries are cut into items of one of these sizes."""
WORKSPACE_BYTES = 2 * 1024 * 1024
"""About what the gathered K and V and the scores of one group may take, in float32."""

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Item:
    """Up to R queries of one segment, consecutive in the batch and in position."""

    segment: int
    first_row: int
    count: int
    first_position: int


@dataclass(frozen=True, slots=True)
class Group:
    """B items of R rows over W blocks each.

    rows, positions: int64[B, R]; where an item has fewer queries the last one is repeated
    blocks:          int64[B, W]; beyond the item's last block its first one is repeated
    owned:           int64[B, W], how many slots of each block hold the item's context
    filled:          int64[N], which of the B * R places hold a query of their own
    """

    rows: Int64
    positions: Int64
    blocks: Int64
    owned: Int64
    filled: Int64


def group_queries(
    query_start: Integers, context_len: Integers, block_table: Integers, shape: CacheShape
) -> Iterator[Group]:
    """Arguments as for `plan_attention`, which has checked them."""
    by_size: defaultdict[tuple[int, int], list[Item]] = defaultdict(list)
    starts, contexts = query_start.tolist(), context_len.tolist()
    for segment, context in enumerate(contexts):
        for size, item in _cut(segment, starts[segment], starts[segment + 1], context):
            by_size[size].append(item)
    for (rows, tiles), items in by_size.items():
        largest = max(1, WORKSPACE_BYTES // _item_bytes(rows, tiles, shape))
        blocks = -(-tiles * TILE_TOKENS // shape.block_tokens)
        for first in range(0, len(items), largest):
            yield _build(
                items[first : first + largest], rows, blocks, block_table, shape.block_tokens
            )


def _cut(
    segment: int, start: int, stop: int, context: int
) -> Iterator[tuple[tuple[int, int], Item]]:
    """The segment's items, each with its (rows, tiles)."""
    rows = next((size for size in QUERY_ROWS if size >= stop - start), QUERY_ROWS[-1])
    before = context - (stop - start)
    for first in range(start, stop, rows):
        count = min(rows, stop - first)
        position = before + first - start
        yield (rows, _round_up(position + count)), Item(segment, first, count, position)


def _round_up(tokens: int) -> int:
    """Tiles for so many tokens, at most a third more than needed: 1 2 3 4 6 8 12 16 24 …"""
    tiles = -(-tokens // TILE_TOKENS)
    step = 1 << max(0, tiles.bit_length() - 2)
    if tiles & (tiles - 1) == 0:
        return tiles
    return -(-tiles // step) * step


def _item_bytes(rows: int, tiles: int, shape: CacheShape) -> int:
    scores = shape.heads * rows
    gathered = 2 * shape.kv_heads * shape.head_dim
    return 4 * tiles * TILE_TOKENS * (scores + gathered)


def _build(
    items: list[Item], rows: int, blocks: int, block_table: Integers, block_tokens: int
) -> Group:
    first_row = np.array([item.first_row for item in items])[:, None]
    first_position = np.array([item.first_position for item in items])[:, None]
    count = np.array([item.count for item in items])[:, None]
    place = np.arange(rows)
    own = np.minimum(place, count - 1)
    context = first_position + count  # (B, 1)
    needed = -(-context // block_tokens)
    index = np.arange(blocks)
    index = np.where(index < needed, index, 0)  # (B, W)
    segments = np.array([item.segment for item in items])[:, None]
    return Group(
        rows=first_row + own,
        positions=first_position + own,
        blocks=block_table[segments, index].astype(np.int64),
        owned=np.minimum(context - index * block_tokens, block_tokens),
        filled=np.flatnonzero(place < count),
    )
