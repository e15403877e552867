"""Rotary position embedding (Su et al. 2021)."""

from kernels.rope.api import rope

__all__ = ["rope"]
