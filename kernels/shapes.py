"""Checks of what callers pass. Bad input is a ValueError that says what was wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Wanted = tuple[int | None, ...]
"""A shape; None stands for any size."""


def check_shape(name: str, tensor: Tensor, wanted: Wanted) -> None:
    """Raise ValueError unless the shape matches. name: as the caller knows the tensor."""
    shape = tensor.shape
    if len(shape) != len(wanted) or any(
        size is not None and size != found for size, found in zip(wanted, shape, strict=True)
    ):
        sizes = ", ".join("any" if size is None else str(size) for size in wanted)
        found = ", ".join(map(str, shape))
        raise ValueError(f"{name} must have the shape ({sizes}), not ({found}).")


def check_same_kind(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Raise ValueError unless both have the same floating type and lie on the same device."""
    if tensor.dtype != other.dtype or tensor.device != other.device:
        raise ValueError(
            f"{name} is {tensor.dtype} on {tensor.device}, but {other_name} is {other.dtype} "
            f"on {other.device}."
        )
    if not tensor.is_floating_point():
        raise ValueError(f"{name} must be of a floating type, not {tensor.dtype}.")
