"""The step against float64, and rows that depend on nothing but their own sequence, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Type
from numpy.typing import NDArray

from kernels.cpu.binding import Kv, Matrix, NativeModel
from tests.fakes.steps import Lane, batch_of, lanes_of
from tests.kernels.cpu import oracle
from tests.kernels.cpu.tiny_native import (
    Float32,
    Shape,
    Weights,
    arrays_of,
    logits_in_chunks,
    logits_of,
    native,
    random_weights,
    step_logits,
)

BLOCK = 16

SHAPES = {
    "q4_1": Shape(),
    "q4_0, no 64 divides": Shape(type=Type.Q4_0, hidden=96, feed_forward=160, vocab=97),
    "q8_0, untied": Shape(type=Type.Q8_0, tied=False),
    "80, biases": Shape(head_dim=80, heads=2, kv_heads=2, hidden=96, biases=True),
    "80, one KV head": Shape(head_dim=80, heads=4, kv_heads=1, biases=True, type=Type.Q8_0),
    "96, qk-norm": Shape(head_dim=96, heads=4, kv_heads=2, qk_norm=True, tied=False),
    "128, one layer": Shape(head_dim=128, heads=2, kv_heads=1, layers=1, feed_forward=32),
    "32 KV heads": Shape(heads=32, kv_heads=32, hidden=32),
    "32 share one": Shape(heads=32, kv_heads=1, hidden=32, vocab=33),
    "5 share one": Shape(heads=10, kv_heads=2, qk_norm=True, biases=True),
    "no rope in every 2nd": Shape(layers=4, no_rope_interval=2),
    "no rope at all": Shape(no_rope_interval=1),
}


def tokens_of(shape: Shape, count: int, seed: int = 3) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(0, shape.vocab, count).tolist()
    return tokens


def rms(values: NDArray[np.floating]) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


@pytest.fixture(params=Kv, ids=lambda kv: kv.name.lower())
def kv(request: pytest.FixtureRequest) -> Kv:
    """Each format of the KV memory in turn."""
    return Kv(request.param)


@pytest.mark.parametrize("name", SHAPES)
def test_equals_float64_but_for_the_roundings(name: str, kv: Kv, built: Path) -> None:
    """int8 activations and a bf16 cache cost 1.4 to 2.5 % of the logits here, whoever computes.

    The native step may add a tenth to that, for its polynomials and its order of adding; a
    missing bias, a wrong head or a position off by one costs many times as much.
    """
    shape = replace(SHAPES[name], kv=kv)
    weights, tokens = random_weights(shape), tokens_of(shape, 83)
    exact = oracle.logits(shape, weights, tokens)
    emulated = oracle.logits(shape, weights, tokens, rounded=True)
    with native(shape, weights, built=built, threads=2) as model:
        (lane,) = lanes_of([tokens], len(tokens))
        got = logits_in_chunks(model, lane, 30)
    assert rms(got - exact) <= 1.1 * rms(emulated - exact)
    assert rms(emulated - exact) < 0.03 * rms(exact)
    assert np.corrcoef(got.ravel(), exact.ravel())[0, 1] > 0.999


def test_the_oracle_tells_a_wrong_weight(best_built: Path) -> None:
    """A single group of one matrix in the wrong place is past the tolerance."""
    shape = Shape(layers=1)
    weights, tokens = random_weights(shape), tokens_of(shape, 40)
    exact = oracle.logits(shape, weights, tokens)
    emulated = oracle.logits(shape, weights, tokens, rounded=True)
    raw, kind = weights.encoded[0, Matrix.DOWN]
    weights.encoded[0, Matrix.DOWN] = np.roll(raw, 20, axis=1), kind
    with native(shape, weights, built=best_built) as model:
        (lane,) = lanes_of([tokens], len(tokens))
        got = logits_in_chunks(model, lane, 40)
    assert rms(got - exact) > 2 * rms(emulated - exact)


def test_a_context_of_three_splits_equals_float64(kv: Kv, built: Path) -> None:
    shape = Shape(layers=1, heads=2, positions=2304, kv=kv)
    weights, tokens = random_weights(shape), tokens_of(shape, 2200)
    exact = oracle.logits(shape, weights, tokens)[1000:]
    emulated = oracle.logits(shape, weights, tokens, rounded=True)[1000:]
    with native(shape, weights, built=built, threads=2, blocks=138) as model:
        (lane,) = lanes_of([tokens], len(tokens))
        got = logits_in_chunks(model, lane, 256)[1000:]
    assert rms(got - exact) <= 1.1 * rms(emulated - exact)


# ---- independence ----------------------------------------------------------------------------

INDEPENDENT = {
    "q4_1, int8 KV": Shape(heads=4, kv_heads=2, vocab=97, kv=Kv.INT8),
    "q4_1": Shape(heads=4, kv_heads=2, vocab=97),
    "q8_0, 80": Shape(type=Type.Q8_0, head_dim=80, heads=2, kv_heads=1, qk_norm=True, biases=True),
}


@contextmanager
def sequences(
    shape: Shape, built: Path, threads: int, count: int, length: int
) -> Iterator[tuple[NativeModel, list[list[int]]]]:
    blocks = count * (-(-length // BLOCK) + 1)
    rng = np.random.default_rng(count)
    prompts = [
        tokens_of(shape, int(size), seed)
        for seed, size in enumerate(rng.integers(1, length + 1, count))
    ]
    with native(shape, random_weights(shape), threads=threads, built=built, blocks=blocks) as model:
        yield model, prompts


def alone(model: NativeModel, prompts: list[list[int]]) -> list[Float32]:
    """Every token's logits, each sequence alone and token by token: the plainest way."""
    return [logits_in_chunks(model, lane, 1) for lane in lanes_of(prompts, longest(prompts))]


def longest(prompts: list[list[int]]) -> int:
    return max(map(len, prompts))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", INDEPENDENT)
def test_company_chunks_and_blocks_change_no_bit(name: str, threads: int, built: Path) -> None:
    """Random steps: any of 32 sequences, 1 to 32 at once, chunks of 1 to 40 tokens."""
    shape = INDEPENDENT[name]
    with sequences(shape, built, threads, 32, 90) as (model, prompts):
        expected = alone(model, prompts)
        for seed in range(3):
            rng = np.random.default_rng(seed)
            lanes = lanes_of(prompts, longest(prompts), shuffle=seed + 1)
            got: dict[int, list[Float32]] = {index: [] for index in range(len(lanes))}
            while waiting := [i for i, lane in enumerate(lanes) if left(lane)]:
                some = rng.permutation(waiting)[: rng.integers(1, len(waiting) + 1)].tolist()
                for index, part in run_some(model, lanes, some, rng).items():
                    got[index].append(part)
            for index, parts in got.items():
                assert np.array_equal(np.concatenate(parts), expected[index])


def left(lane: Lane) -> int:
    return len(lane.tokens) - lane.computed


def run_some(
    model: NativeModel, lanes: list[Lane], some: list[int], rng: np.random.Generator
) -> dict[int, Float32]:
    room, parts = 250, []
    for index in some:
        count = min(left(lanes[index]), int(rng.choice([1, 1, 2, 3, 5, 16, 40])), room)
        room -= count
        if count:
            parts.append((index, count))
    logits = logits_of(model, [(lanes[index], count) for index, count in parts])
    ends = np.cumsum([count for _, count in parts])[:-1]
    return dict(zip((index for index, _ in parts), np.split(logits, ends), strict=True))


@pytest.mark.parametrize("chunk", [7, 64, 96, 97, 191, 250])
def test_chunk_sizes_change_no_bit(chunk: int, kv: Kv, built: Path) -> None:
    shape = replace(INDEPENDENT["q4_1"], kv=kv)
    tokens = tokens_of(shape, 250)
    with native(shape, random_weights(shape), built=built, threads=2) as model:
        plain, other = lanes_of([tokens, tokens], len(tokens))
        expected = logits_in_chunks(model, plain, 1)
        assert np.array_equal(logits_in_chunks(model, other, chunk), expected)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 13, 16, 31, 32])
def test_batch_sizes_change_no_bit(count: int, best_built: Path) -> None:
    """Only the last tokens are sampled here, so that the last layer runs for them alone too."""
    shape = INDEPENDENT["q8_0, 80"]
    with sequences(shape, best_built, 2, 32, 40) as (model, prompts):
        expected = np.stack([logits[-1] for logits in alone(model, prompts)])
        lanes = lanes_of(prompts, longest(prompts), shuffle=9)
        for start in range(0, len(lanes), count):
            group = lanes[start : start + count]
            room = max(1, 256 // len(group))
            while early := [lane for lane in group if left(lane) > room]:
                logits_of(model, [(lane, room) for lane in early], sample_all=False)
            got = logits_of(model, [(lane, left(lane)) for lane in group], sample_all=False)
            assert np.array_equal(got, expected[start : start + count])


def test_long_contexts_split_between_threads_change_no_bit(kv: Kv, built: Path) -> None:
    """Past 1,024 and 2,048 positions: whole chunks on one thread, decodes that share splits."""
    shape = Shape(layers=2, heads=2, positions=2304, vocab=64, kv=kv)
    weights, tokens = random_weights(shape), tokens_of(shape, 2090)
    with native(shape, weights, built=built, blocks=140) as model:
        (lane,) = lanes_of([tokens], len(tokens))
        expected = logits_in_chunks(model, lane, 250)
    with native(shape, weights, built=built, threads=2, blocks=140) as model:
        (lane,) = lanes_of([tokens], len(tokens), shuffle=1)
        short = Lane(tokens_of(shape, 30), [135, 136])
        parts = [logits_of(model, [(lane, 200)]) for _ in range(5)]
        for count in [1] * 30 + [3, 8, 16, 17] * 5 + [200, 200, 200, 200]:
            together = [(lane, count)] if left(short) < 2 else [(lane, count), (short, 2)]
            parts.append(logits_of(model, together)[:count])
        parts += [logits_of(model, [(lane, 1)]) for _ in range(left(lane) - 2)]
        last = logits_of(model, [(lane, 2)], sample_all=False)  # the last layer runs for one row
    assert np.array_equal(np.concatenate(parts), expected[:2088])
    assert np.array_equal(last, expected[2089:])


@pytest.mark.parametrize("hit", [16, 64, 80])
def test_blocks_that_another_sequence_computed_change_no_bit(
    hit: int, kv: Kv, best_built: Path
) -> None:
    """A prefix hit: the first blocks are another's, which came in chunks and in company."""
    shape = replace(INDEPENDENT["q4_1"], kv=kv)
    tokens, other = tokens_of(shape, 110), tokens_of(shape, 130, seed=8)
    with native(shape, random_weights(shape), built=best_built, threads=2) as model:
        first, company, plain = lanes_of([tokens[:100], other, tokens], 144)
        expected = logits_in_chunks(model, plain, 1)
        while left(first):
            count = min(left(first), 23)
            logits_of(model, [(first, count), (company, count + 3)])
        own = [40 + i for i in range(9)]
        second = Lane(tokens, first.blocks[: hit // BLOCK] + own[hit // BLOCK :], computed=hit)
        assert np.array_equal(logits_in_chunks(model, second, 30), expected[hit:])


def test_only_the_sampled_rows_of_the_last_layer(best_built: Path) -> None:
    """Any choice of rows to sample gives the bits that all of them would have."""
    shape = INDEPENDENT["q4_1"]
    tokens = tokens_of(shape, 60)
    with native(shape, random_weights(shape), built=best_built, threads=2) as model:
        (lane,) = lanes_of([tokens], len(tokens))
        expected = logits_in_chunks(model, lane, 60)
        for rows in ([59], [0, 1, 2], [5, 17, 40, 41, 58], list(range(0, 60, 2)), []):
            assert np.array_equal(sampled(model, tokens, rows), expected[rows])


def sampled(model: NativeModel, tokens: list[int], rows: list[int]) -> Float32:
    (lane,) = lanes_of([tokens], len(tokens))
    arrays = arrays_of(batch_of([(lane, len(tokens))]))
    return step_logits(model, arrays._replace(sample_rows=np.array(rows, np.int32)))


# ---- what lies in memory that a row must not see ---------------------------------------------

POISON = 7


def poisoned(shape: Shape, scale: float) -> Weights:
    """Weights in which the token POISON breaks whatever attends to it."""
    weights = random_weights(shape)
    raw, kind = weights.encoded[0, Matrix.EMBEDDING]
    groups = raw.reshape(shape.vocab, -1, 34)
    groups[POISON, :, :2] = np.array([scale], np.float16).view(np.uint8)
    groups[POISON, :, 2:] = 127
    weights.encoded[0, Matrix.EMBEDDING] = groups.reshape(raw.shape), kind
    return weights


@pytest.mark.parametrize("scale", [np.nan, np.inf, 65504.0])
def test_what_freed_blocks_hold_changes_no_bit(scale: float, kv: Kv, built: Path) -> None:
    """Every length up to two blocks and a bit, in blocks that a broken sequence filled."""
    shape = Shape(heads=2, vocab=64, tied=False, kv=kv)
    weights = poisoned(shape, scale)
    healthy = [token for token in tokens_of(shape, 60) if token != POISON][:40]
    broken = [POISON] * 48
    with native(shape, weights, built=built, threads=2, blocks=4) as clean:
        expected = logits_in_chunks(clean, Lane(healthy, [0, 1, 2]), 40)
    with native(shape, weights, built=built, threads=2, blocks=4) as model:
        for chunk in (1, 5, 40):
            logits_in_chunks(model, Lane(broken, [0, 1, 2]), 48)
            got = logits_in_chunks(model, Lane(healthy, [0, 1, 2]), chunk)
            assert np.array_equal(got, expected)
    assert np.isfinite(expected).all()


@pytest.mark.parametrize("scale", [np.nan, np.inf])
def test_a_broken_row_spoils_neither_neighbours_nor_what_came_before(
    scale: float, kv: Kv, built: Path
) -> None:
    shape = Shape(heads=6, kv_heads=2, vocab=64, tied=False, kv=kv)
    healthy = [token for token in tokens_of(shape, 60) if token != POISON][:30]
    with native(shape, poisoned(shape, scale), built=built, threads=2) as model:
        (first, second) = lanes_of([healthy, [*healthy[:20], POISON, *healthy[21:]]], 32)
        expected = logits_in_chunks(model, Lane(healthy, [60, 61]), 1)
        got = logits_of(model, [(second, 30), (first, 30)])
    assert np.array_equal(got[30:], expected)
    assert np.array_equal(got[:20], expected[:20])
    assert not np.isfinite(got[20]).any()
