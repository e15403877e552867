"""Paged attention against float64, and bit for bit against itself under every arrangement."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.paged_attention import CacheShape, paged_attention, plan_attention
from kernels.paged_attention.grouping import QUERY_ROWS
from tests.kernels.reference_cases import random, threads

BLOCK = 16


@dataclass
class Sequence:
    """K, V and Q of every position of one sequence."""

    key: Tensor  # (C, KV, D)
    value: Tensor  # (C, KV, D)
    query: Tensor  # (C, H, D)

    @classmethod
    def random(cls, tokens: int, heads: int, kv_heads: int, head_dim: int, seed: int) -> Sequence:
        key, value = (random(tokens, kv_heads, head_dim, seed=3 * seed + i) for i in (0, 1))
        return cls(key, value, 2 * random(tokens, heads, head_dim, seed=3 * seed + 2))

    def exact(self, scale: float) -> Tensor:
        """float64[C, H, D], causal attention without pages."""
        shared = self.query.shape[1] // self.key.shape[1]
        key = self.key.double().repeat_interleave(shared, 1)
        value = self.value.double().repeat_interleave(shared, 1)
        scores = scale * torch.einsum("qhd,khd->hqk", self.query.double(), key)
        scores += torch.full(scores.shape[1:], -torch.inf).triu(1)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value)


def attend(
    parts: list[tuple[Sequence, int, int]],
    *,
    scale: float = 0.25,
    seed: int = 0,
    extra_rows: int = 0,
) -> list[Tensor]:
    """Attention of the queries `start : stop` of each sequence, in one call.

    The cache is poisoned with NaN wherever no sequence owns a slot.
    """  # fmt: skip
    first = parts[0][0]
    kv_heads, head_dim, heads = *first.key.shape[1:], first.query.shape[1]
    widths = [-(-stop // BLOCK) for _, _, stop in parts]
    blocks = sum(widths) + 3
    order = np.random.default_rng(seed).permutation(blocks)
    table = np.full((len(parts), max(widths) + seed % 2), -1, np.int32)
    caches = torch.full((2, kv_heads, blocks, BLOCK, head_dim), torch.nan)
    used = 0
    for row, ((sequence, _, stop), width) in enumerate(zip(parts, widths, strict=True)):
        table[row, :width] = order[used : used + width]
        used += width
        positions = np.arange(stop)
        slots = table[row, positions // BLOCK] * BLOCK + positions % BLOCK
        caches.flatten(2, 3)[0, :, slots] = sequence.key[:stop].transpose(0, 1)
        caches.flatten(2, 3)[1, :, slots] = sequence.value[:stop].transpose(0, 1)
    counts = [stop - start for _, start, stop in parts]
    plan = plan_attention(
        np.cumsum([0, *counts]),
        np.array([stop for _, _, stop in parts]),
        table,
        CacheShape(heads, kv_heads, blocks, BLOCK, head_dim),
    )
    query = torch.cat([sequence.query[start:stop] for sequence, start, stop in parts])
    query = torch.cat((query, query.new_ones(extra_rows, *query.shape[1:])))
    result = paged_attention(query, caches[0], caches[1], plan, scale=scale)
    assert torch.equal(result[sum(counts) :], torch.zeros_like(result[sum(counts) :]))
    return list(torch.split(result[: sum(counts)], counts))


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (4, 4), (8, 1), (14, 2)])
def test_equals_float64(heads: int, kv_heads: int, head_dim: int) -> None:
    scale = head_dim**-0.5
    sequence = Sequence.random(150, heads, kv_heads, head_dim, seed=1)
    result = attend([(sequence, 0, 150)], scale=scale, extra_rows=2)[0]
    exact = sequence.exact(scale)
    torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 4, 80), (14, 2, 128)])
def test_bits_do_not_depend_on_chunks_company_blocks_or_threads(
    heads: int, kv_heads: int, head_dim: int
) -> None:
    sequences = [
        Sequence.random(tokens, heads, kv_heads, head_dim, seed)
        for seed, tokens in enumerate((1, 15, 16, 17, 63, 64, 65, 130, 300))
    ]
    with threads(1):
        alone = [attend([(each, 0, len(each.query))])[0] for each in sequences]
    for count in (1, 2, 4):
        with threads(count):
            together = attend([(each, 0, len(each.query)) for each in sequences], seed=5)
            decodes = attend([(each, len(each.query) - 1, len(each.query)) for each in sequences])
        for expected, prefill, decode in zip(alone, together, decodes, strict=True):
            assert torch.equal(prefill, expected)
            assert torch.equal(decode, expected[-1:])


@settings(max_examples=30, deadline=None)
@given(
    parts=st.lists(st.tuples(st.integers(1, 200), st.integers(1, 80)), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
)
def test_bits_of_random_steps(parts: list[tuple[int, int]], seed: int) -> None:
    """Any mix of chunks and decodes gives each query the bits it has alone."""
    sequences = [
        Sequence.random(context, 6, 2, 32, index) for index, (context, _) in enumerate(parts)
    ]
    step = [
        (sequence, max(0, context - rows), context)
        for sequence, (context, rows) in zip(sequences, parts, strict=True)
    ]
    for result, (sequence, start, stop) in zip(attend(step, seed=seed), step, strict=True):
        for position in {start, (start + stop) // 2, stop - 1}:
            alone = attend([(sequence, position, position + 1)], seed=seed + 1)[0]
            assert torch.equal(result[position - start], alone[0])


def test_a_long_context_is_computed_in_pieces() -> None:
    sequence = Sequence.random(1100, 8, 8, 64, seed=1)
    whole = attend([(sequence, 1000, 1100), (sequence, 0, 1100)])
    assert torch.equal(whole[0], whole[1][1000:])
    torch.testing.assert_close(whole[1].double(), sequence.exact(0.25), rtol=1e-5, atol=1e-5)


def test_extreme_scores_do_not_overflow() -> None:
    sequence = Sequence.random(40, 2, 2, 64, seed=1)
    result = attend([(replace(sequence, query=1e4 * sequence.query), 0, 40)])[0]
    assert torch.isfinite(result).all()


def test_segments_without_queries_are_left_out() -> None:
    shape = CacheShape(2, 2, 4, BLOCK, 8)
    plan = plan_attention(np.array([0, 0, 1]), np.array([99, 1]), np.array([[-1], [3]]), shape)
    query, cache = random(1, 2, 8), random(2, 4, BLOCK, 8)
    result = paged_attention(query, cache, cache, plan, scale=1.0)
    assert torch.equal(result[0], cache[:, 3, 0])


def test_query_sizes_make_whole_row_multiples() -> None:
    assert all(size == 1 or size % 8 == 0 for size in QUERY_ROWS)


PLAN: dict[str, tuple[dict[str, Any], str]] = {
    "segments": ({"context_len": [1, 1]}, "do not describe the same segments"),
    "tables": ({"block_table": [[0], [1]]}, "do not describe the same segments"),
    "start": ({"query_start": [1, 2]}, "begin at 0"),
    "falling": (
        {"query_start": [0, 2, 1], "context_len": [2, 1], "block_table": [[0], [1]]}, "never fall",
    ),
    "context": ({"query_start": [0, 5], "context_len": [4]}, "at least the segment's own"),
    "too few blocks": ({"context_len": [17]}, "has 1 blocks a segment; 2 are needed"),
    "no block": ({"block_table": [[-1]]}, "outside 0 to 3"),
    "beyond the cache": ({"block_table": [[4]]}, "outside 0 to 3"),
}  # fmt: skip


@pytest.mark.parametrize("case", PLAN)
def test_bad_plans(case: str) -> None:
    changes, words = PLAN[case]
    valid = {"query_start": [0, 1], "context_len": [1], "block_table": [[0]]}
    start, context, table = (np.array(changes.get(name, valid[name])) for name in valid)
    with pytest.raises(ValueError, match=words):
        plan_attention(start, context, table, CacheShape(2, 2, 4, BLOCK, 8))


def test_bad_shapes() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        CacheShape(2, 2, 0, BLOCK, 8)
    with pytest.raises(ValueError, match="3 heads cannot share 2"):
        CacheShape(3, 2, 4, BLOCK, 8)
    one = np.array([0, 1]), np.array([1]), np.array([[0]])
    with pytest.raises(ValueError, match="Blocks of 24 tokens do not divide 64"):
        plan_attention(*one, CacheShape(2, 2, 4, 24, 8))
    plan = plan_attention(*one, CacheShape(2, 2, 4, BLOCK, 8))
    query, cache = random(1, 2, 8), random(2, 4, BLOCK, 8)
    with pytest.raises(ValueError, match=r"query must have the shape \(any, 2, 8\)"):
        paged_attention(query[:, :1], cache, cache, plan, scale=1.0)
    with pytest.raises(ValueError, match="query has 0 rows; the plan is for 1"):
        paged_attention(query[:0], cache, cache, plan, scale=1.0)
    with pytest.raises(ValueError, match="value_cache must have the shape"):
        paged_attention(query, cache, cache[:, :3], plan, scale=1.0)
