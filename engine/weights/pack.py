"""GGUF tensors as the native step takes them: 4- or 8-bit groups of 32.

Q4_0, Q4_1 and Q8_0 are taken byte for byte. Q4_K keeps its 4-bit values; its two-level scales
become one fp16 scale and one fp16 minimum a group, so a weight moves by at most 2**-11 of what
its group can span (15 scales) plus 2**-11 of its minimum. Everything else is quantised to Q8_0:
a weight moves by at most 2**-7 of its group's largest, half of that where fp16 holds the scale
exactly, which is below what Q5_K and Q6_K lost already.
"""

from __future__ import annotations

import numpy as np
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from engine.weights.gguf import GgufFile

GROUP = 32
GROUP_BYTES = {Type.Q4_0: 18, Type.Q4_1: 20, Type.Q8_0: 34}
_SUPER_GROUPS = 8  # groups of 32 in a Q4_K block
_SLAB_VALUES = 1 << 17  # temporaries stay in the cache


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
    return _as_q8_0(file.raw(name), source), Type.Q8_0


def _as_q8_0(raw: NDArray[np.uint8], source: Type) -> NDArray[np.uint8]:
    """Through float32, a slab at a time: a whole embedding in float32 would be the peak of memory.

    Rows end where groups do, so that the package, which takes 16 rows a call, can be given one.
    """
    values_in_group, group_bytes = GGML_QUANT_SIZES[source]
    values_in_row = raw.shape[1] // group_bytes * values_in_group
    out = np.empty((len(raw), values_in_row // GROUP * GROUP_BYTES[Type.Q8_0]), np.uint8)
    rows = max(1, _SLAB_VALUES // values_in_row)
    for row in range(0, len(raw), rows):
        values = dequantize(raw[row : row + rows].reshape(1, -1), source)
        out[row : row + rows] = quantize(values, Type.Q8_0).reshape(-1, out.shape[1])
    return out


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
