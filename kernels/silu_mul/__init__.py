"""The gate of a SwiGLU feed-forward layer (Shazeer 2020)."""

from kernels.silu_mul.api import silu_mul

__all__ = ["silu_mul"]
