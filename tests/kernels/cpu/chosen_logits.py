"""A model whose logits one can choose: the step computes them, and they come out as wished."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from gguf.constants import GGMLQuantizationType as Type
from numpy.typing import NDArray

from kernels.cpu.binding import Int32, Matrix, NativeModel, SampleParameters, StepArrays, StepResult
from tests.kernels.cpu.tiny_native import Shape, Weights, native, random_weights

GROUP, GROUP_BYTES = 32, 34


@contextmanager
def chosen_logits(
    wanted: NDArray[np.float64], *, built: Path | None = None, threads: int = 1
) -> Iterator[NativeModel]:
    """The logits of token t are wanted[t], as fp16 scales can give them. float64[R, V], R <= V.

    All layers are silent. The embedding of token t is ones in group t of R groups, so its norm
    is sqrt(R) there; the head's row v has in each group a single 127 with a scale of its own.
    A NaN or an infinity in a scale meets zeros in the other rows, which makes it NaN there.
    """
    rows, vocab = wanted.shape
    shape = Shape(
        layers=1, hidden=GROUP * rows, heads=1, feed_forward=32, vocab=vocab, tied=False,
        positions=16, type=Type.Q8_0,
    )  # fmt: skip
    weights = random_weights(shape)
    for (layer, which), (encoded, kind) in weights.encoded.items():
        weights.encoded[layer, which] = np.zeros_like(encoded), kind
    _set(weights, Matrix.EMBEDDING, np.eye(vocab, rows), 127)
    of_tokens = wanted.T
    _set(weights, Matrix.HEAD, np.abs(of_tokens) / (127 * np.sqrt(rows)), np.sign(of_tokens) * 127)
    for vector in weights.vectors.values():
        vector[:] = 1
    with native(shape, weights, built=built, threads=threads, blocks=rows, max_rows=rows) as model:
        yield model


def _set(weights: Weights, which: Matrix, scales: NDArray[np.float64], values: object) -> None:
    """scales: [rows, groups]; values: one int8 for all of an embedding's group, else the first."""
    encoded, kind = weights.encoded[0, which]
    groups = encoded.reshape(*scales.shape, GROUP_BYTES)
    with np.errstate(over="ignore", invalid="ignore"):
        groups[:, :, :2] = scales.astype(np.float16)[..., None].view(np.uint8)
        first = np.nan_to_num(np.asarray(values)).astype(np.int8).view(np.uint8)
    if which is Matrix.EMBEDDING:
        groups[:, :, 2:] = first
    else:
        groups[:, :, 2] = first
    weights.encoded[0, which] = groups.reshape(encoded.shape), kind


def step(model: NativeModel, rows: int, samples: list[SampleParameters] | None) -> StepResult:
    """One row for each of the chosen rows of logits, all sampled."""
    each: Int32 = np.arange(rows, dtype=np.int32)
    zeros = np.zeros(rows, np.int32)
    arrays = StepArrays(
        each, zeros, each * 16, np.arange(rows + 1, dtype=np.int32), zeros + 1, each[:, None], each
    )
    return model.step(arrays, samples, logits=True)
