"""Root-mean-square normalisation (Zhang, Sennrich 2019)."""

from kernels.rms_norm.api import rms_norm

__all__ = ["rms_norm"]
