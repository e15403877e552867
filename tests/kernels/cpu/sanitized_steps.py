"""Run under a sanitizer by test_sanitizers.py: one of everything that the native step does.

    sanitized_steps.py LIBRARY THREADS

Ends with `done` on stdout; a sanitizer ends the process before that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import numpy as np
from gguf.constants import GGMLQuantizationType as Type

from kernels.cpu.binding import Kv, NativeError, NativeModel, SampleParameters
from tests.fakes.steps import Lane, batch_of, lanes_of
from tests.kernels.cpu.tiny_native import (
    Shape,
    arrays_of,
    config_of,
    load,
    logits_in_chunks,
    native,
    random_weights,
)

SHAPES = (
    Shape(vocab=97, positions=2200),
    Shape(head_dim=80, heads=2, kv_heads=2, hidden=96, type=Type.Q8_0, tied=False, biases=True),
    Shape(head_dim=96, heads=4, kv_heads=2, qk_norm=True, no_rope_interval=2, type=Type.Q4_0),
    Shape(head_dim=128, heads=32, kv_heads=1, layers=1, feed_forward=32),
    Shape(head_dim=80, heads=4, kv_heads=2, hidden=96, kv=Kv.INT8, positions=2200),
)


def parameters(vocab: int) -> list[SampleParameters]:
    ids = np.array([3, 5, vocab - 1, 3], np.int32)
    bias = np.array([2.5, -3.0, 100.0, 0.0], np.float32)
    rows: list[SampleParameters] = []
    for temperature, top_k, top_p, min_p in product((0.0, 0.8), (0, 1, 7), (1.0, 0.6), (0.0, 0.2)):
        rows.append(
            SampleParameters(1, 9, temperature, top_k, top_p, min_p, logprobs=len(rows) % 21)
        )
        rows.append(
            SampleParameters(2, 8, temperature, top_k, top_p, min_p, 1.3, 0.5, -0.5, 20,
                             ids, ids, None, ids[:1], ids[1:2], ids[:3], bias[:3])
        )  # fmt: skip
    rows.append(SampleParameters(0, 0, 1.0, allowed=ids[:1], bad=ids[:1]))
    mask = np.full(-(-vocab // 32), 0x55555555, np.uint32)
    rows.append(SampleParameters(3, 7, 0.8, mask=mask))
    return rows


def run(shape: Shape, built: Path, threads: int) -> None:
    with native(shape, random_weights(shape), built=built, threads=threads, blocks=160) as model:
        tokens = np.random.default_rng(1).integers(0, shape.vocab, 70).tolist()
        lanes = lanes_of([tokens, tokens[:33], tokens[:1], tokens[:17]], 96)
        for lane, chunk in zip(lanes, (64, 7, 1, 5), strict=True):
            logits_in_chunks(model, lane, chunk)
        for row in parameters(shape.vocab):
            for lane in lanes:
                lane.tokens.append(1)
            if len(lanes[0].tokens) > 90:
                lanes = lanes_of([tokens, tokens[:3]], 96)
            batch = batch_of([(lane, len(lane.tokens) - lane.computed) for lane in lanes])
            model.step(arrays_of(batch), [row] * len(batch.samples), logits=True)


def run_long(shape: Shape, built: Path, threads: int) -> None:
    """A context of three splits, decoded beside short ones: splits are tasks of their own."""
    with native(shape, random_weights(shape), built=built, threads=threads, blocks=160) as model:
        long, short = Lane([1] * 2100, list(range(132))), Lane([2] * 40, [140, 141, 142])
        while long.computed < 2090:
            model.step(arrays_of(batch_of([(long, min(200, 2090 - long.computed))])), None)
        for _ in range(10):
            model.step(arrays_of(batch_of([(long, 1), (short, 4)], sample_all=True)), None)


def run_errors(shape: Shape, built: Path) -> None:
    weights = random_weights(shape)
    model = NativeModel(config_of(shape), built)
    (lane,) = lanes_of([[1, 2, 3]], 16)
    good = arrays_of(batch_of([(lane, 3)]))
    wrong = [
        good._replace(tokens=good.tokens + shape.vocab),
        good._replace(positions=good.positions + 2**30),
        good._replace(context_len=np.full_like(good.context_len, -(2**31))),
        good._replace(block_table=good.block_table + 2**27),
        good._replace(sample_rows=good.sample_rows + 5),
    ]
    with refused():
        model.step(good, None)
    load(model, weights, 8)
    with refused():
        load(model, weights, 8)
    for arrays in wrong:
        with refused():
            model.step(arrays, None)
    model.step(good, None)
    model.close()
    model.close()
    with refused():
        model.step(good, None)


@contextmanager
def refused() -> Iterator[None]:
    try:
        yield
    except NativeError:
        return
    raise AssertionError("the native step took what it must refuse")


def main() -> None:
    built, threads = Path(sys.argv[1]), int(sys.argv[2])
    for shape in SHAPES:
        run(shape, built, threads)
    for shape in (SHAPES[0], SHAPES[-1]):
        run_long(shape, built, threads)
    run_errors(SHAPES[0], built)
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main()
