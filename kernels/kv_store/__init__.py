"""Writing K and V of new tokens into the paged cache."""

from kernels.kv_store.api import kv_store

__all__ = ["kv_store"]
