"""The policies of a route, made from its settings."""

from __future__ import annotations

from gateway.config_policies import (
    BudgetConfig,
    CoalesceConfig,
    DedupConfig,
    ExactCacheConfig,
    HistoryConfig,
)
from gateway.config_sections import RouteConfig
from policies.base import Policy
from policies.budget import BudgetPolicy
from policies.cache import ExactCachePolicy
from policies.coalesce import CoalescePolicy
from policies.counting import VERSION as COUNTING
from policies.dedup import DedupPolicy
from policies.history import HistoryPolicy
from policies.holdout import epoch_of


def policies_of(route: RouteConfig) -> list[Policy]:
    """A route's policies in the order in which they are asked: output first."""
    found: list[Policy] = []
    if (budget := route.budget) is not None:
        cap = BudgetPolicy(budget.max_tokens, budget.mode, soft=budget.soft)
        found.append(_set(cap, budget))
    exact = route.cache.exact
    cache = ExactCachePolicy(
        exact.mode,
        sampled=exact.requests == "all",
        keep_cut=exact.cut_answers == "kept",
        ttl_s=route.cache.ttl_s,
    )
    found += [_set(cache, exact), _set(CoalescePolicy(route.coalesce.mode), route.coalesce)]
    if (history := route.history) is not None:
        window = HistoryPolicy(history.high_tokens, history.low_tokens, history.mode)
        found.append(_set(window, history, f"-{COUNTING}"))
    if (dedup := route.dedup) is not None:
        found.append(_set(DedupPolicy(dedup.min_tokens, dedup.mode), dedup, f"-{COUNTING}"))
    return [policy for policy in found if policy.mode != "disabled"]


def _set(
    policy: Policy,
    settings: BudgetConfig | ExactCacheConfig | CoalesceConfig | HistoryConfig | DedupConfig,
    version: str = "",
) -> Policy:
    """What the settings of all have. version: of what else the policy's effect rests on."""
    policy.holdout, policy.epoch = settings.holdout, epoch_of(settings) + version
    return policy
