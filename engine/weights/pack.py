"""GGUF tensors as the native step takes them: 4- or 8-bit groups of 32.

Q4_0, Q4_1 and Q8_0 are taken byte for byte. Q4_K keeps its 4-bit values; its two-level scales
become one fp16 scale and minimum a group, so a weight moves by at most 2**-11 of its group's
range. Everything else is quantised to Q8_0, a relative error of at most 2**-8 in each group's
largest weight: below what Q5_K and Q6_K lost already.
"""

from __future__ import annotations

import numpy as np
from gguf.constants import GGMLQuantizationType as Type
from gguf.quants import quantize
from numpy.typing import NDArray

from engine.weights.gguf import GgufFile

GROUP = 32
GROUP_BYTES = {Type.Q4_0: 18, Type.Q4_1: 20, Type.Q8_0: 34}
_SUPER_GROUPS = 8  # groups of 32 in a Q4_K block
_SLAB_ROWS = 4096


def packed_type(kind: Type) -> Type:
    """The encoding in which the native step holds a tensor of this encoding."""
    if kind in GROUP_BYTES:
        return kind
    return Type.Q4_1 if kind is Type.Q4_K else Type.Q8_0


def packed(file: GgufFile, name: str, kind: Type | None = None) -> tuple[NDArray[np.uint8], Type]:
    """uint8[rows, bytes of a row] and its encoding.

    kind: the encoding wanted, where matrices must agree; Q8_0 or the tensor's own packed_type
    """
    source = file.info(name).type
    wanted = kind or packed_type(source)
    if wanted == source:
        return file.raw(name), source
    if source is Type.Q4_K and wanted is Type.Q4_1:
        return _from_q4_k(file.raw(name)), Type.Q4_1
    values = file.dequantized(name)
    parts = [
        quantize(values[row : row + _SLAB_ROWS], Type.Q8_0)
        for row in range(0, len(values), _SLAB_ROWS)
    ]
    return np.concatenate(parts), Type.Q8_0


def _from_q4_k(raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """uint8[rows, blocks * 144] of Q4_K to uint8[rows, blocks * 8 * 20] of Q4_1."""
    blocks = raw.reshape(-1, 144)
    scale = blocks[:, 0:2].copy().view(np.float16).astype(np.float32)
    minimum = blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
    scales, minima = _six_bit_scales(blocks[:, 4:16])
    # 32 bytes hold two groups of 32: the low nibbles are the first, the high ones the second.
    pairs = blocks[:, 16:].reshape(-1, 4, GROUP)
    values = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(-1, _SUPER_GROUPS, GROUP)
    out = np.empty((len(blocks), _SUPER_GROUPS, GROUP_BYTES[Type.Q4_1]), np.uint8)
    out[:, :, 0:2] = (scale * scales).astype(np.float16)[..., None].view(np.uint8)
    out[:, :, 2:4] = (-minimum * minima).astype(np.float16)[..., None].view(np.uint8)
    out[:, :, 4:] = values[:, :, :16] | (values[:, :, 16:] << 4)
    return out.reshape(len(raw), -1)


def _six_bit_scales(
    packed_scales: NDArray[np.uint8],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(scales, minima), each float32[blocks, 8], out of Q4_K's twelve bytes."""
    low, high, rest = packed_scales[:, 0:4], packed_scales[:, 4:8], packed_scales[:, 8:12]
    scales = np.concatenate([low & 63, (rest & 15) | ((low >> 6) << 4)], axis=1)
    minima = np.concatenate([high & 63, (rest >> 4) | ((high >> 6) << 4)], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)
