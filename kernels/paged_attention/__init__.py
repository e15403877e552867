"""Causal attention over a paged KV cache, for prefill chunks and decodes alike.

A step is planned once (`plan_attention`) and then attends in every layer (`paged_attention`).
"""

from kernels.paged_attention.api import (
    AttentionPlan,
    CacheShape,
    paged_attention,
    plan_attention,
)

__all__ = ["AttentionPlan", "CacheShape", "paged_attention", "plan_attention"]
