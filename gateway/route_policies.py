"""The policies of a route, made from its settings."""

from __future__ import annotations

from gateway.config_policies import (
    AgentConfig,
    BudgetConfig,
    CoalesceConfig,
    DedupConfig,
    ExactCacheConfig,
    HistoryConfig,
    InputConfig,
    RoutingConfig,
    SemanticCacheConfig,
    ShapeConfig,
)
from gateway.config_sections import RouteConfig
from gateway.routing.policy import routing_policy
from policies.agent import VERSION as ENDING
from policies.agent import AgentPolicy
from policies.base import Policy
from policies.budget import BudgetPolicy, Learning
from policies.cache import ExactCachePolicy
from policies.coalesce import CoalescePolicy
from policies.counting import VERSION as COUNTING
from policies.dedup import DedupPolicy
from policies.features import VERSION as FEATURES
from policies.history import HistoryPolicy
from policies.holdout import epoch_of
from policies.input_budget import InputPolicy
from policies.ranking import VERSION as RANKING
from policies.semantic import SemanticCachePolicy
from policies.shape import VERSION as WORDING
from policies.shape import ShapePolicy
from policies.slots import VERSION as SLOTS
from policies.summary import SummaryPolicy
from policies.thresholds import VERSION as THRESHOLDS
from policies.tiers import TieredPolicy


def policies_of(route: RouteConfig, window_tokens: int | None = None) -> list[Policy]:
    """A route's policies in the order in which they are asked: output first.

    window_tokens: what a request to its model may span; None where nothing is known of it
    """
    found: list[Policy] = []
    if (shape := route.shape) is not None:
        found.append(_shape(shape))
    if (budget := route.budget) is not None:
        found.append(_budget(budget))
    if (agent := route.agent) is not None:
        found.append(_agent(agent))
    exact = route.cache.exact
    cache = ExactCachePolicy(
        exact.mode,
        sampled=exact.requests == "all",
        keep_cut=exact.cut_answers == "kept",
        ttl_s=route.cache.ttl_s,
    )
    found += [_set(cache, exact), _set(CoalescePolicy(route.coalesce.mode), route.coalesce)]
    if (semantic := route.cache.semantic) is not None:
        found.append(_semantic(semantic, sampled=cache.sampled))
    if (routing := route.route) is not None:
        policy = routing_policy(route.model, routing)
        found.append(_set(policy, routing, f"-{COUNTING}-{FEATURES}"))
    if (history := route.history) is not None:
        found.append(_history(history, window_tokens))
    if (limit := route.input) is not None:
        found.append(_input(limit))
    if (dedup := route.dedup) is not None:
        found.append(_set(DedupPolicy(dedup.min_tokens, dedup.mode), dedup, f"-{COUNTING}"))
    return [policy for policy in found if policy.mode != "disabled"]


def _shape(settings: ShapeConfig) -> Policy:
    policy = ShapePolicy(
        settings.mode,
        concise=settings.brevity == "concise",
        instruction=settings.instruction or "",
        schema=settings.schema,
        hides_reasoning=settings.reasoning == "hidden",
        text=settings.answer,
    )
    _set(policy, settings, f"-{WORDING}")
    if not (policy.concise or policy.instruction):
        # All of it holds in both arms: there is nothing to compare.
        policy.holdout = 0.0
    return policy


def _budget(settings: BudgetConfig) -> Policy:
    learning = None
    if (learn := settings.learn) is not None:
        learning = Learning(learn.percentile, learn.min_tokens, learn.min_answers)
    policy = BudgetPolicy(
        settings.max_tokens,
        settings.mode,
        soft=settings.soft,
        learning=learning,
        reasoning_tokens=settings.reasoning_tokens,
    )
    return _set(policy, settings)


def _agent(settings: AgentConfig) -> Policy:
    policy = AgentPolicy(
        settings.mode,
        max_tool_rounds=settings.max_tool_rounds,
        max_run_tokens=settings.max_run_tokens,
        finishes=settings.on_limit == "finish",
    )
    return _set(policy, settings, f"-{COUNTING}-{ENDING}")


def _semantic(settings: SemanticCacheConfig, *, sampled: bool) -> Policy:
    policy = SemanticCachePolicy(
        settings.mode,
        use=settings.use,
        min_similarity=settings.min_similarity,
        max_entries=settings.max_entries,
        sampled=sampled,
    )
    return _set(policy, settings, f"-{SLOTS}-{THRESHOLDS}")


def _history(settings: HistoryConfig, window_tokens: int | None) -> Policy:
    marks, mode = (settings.high_tokens, settings.low_tokens), settings.mode
    policy: Policy = HistoryPolicy(*marks, mode)
    if settings.strategy == "summary":
        policy = SummaryPolicy(*marks, settings.summary_tokens, mode, window_tokens=window_tokens)
    elif settings.strategy == "tiered":
        sizes = (settings.summary_tokens, settings.facts)
        policy = TieredPolicy(*marks, *sizes, mode, window_tokens=window_tokens)
    return _set(policy, settings, f"-{COUNTING}")


def _input(settings: InputConfig) -> Policy:
    is_ranked = settings.retrieved == "ranked"
    policy = InputPolicy(settings.max_prompt_tokens, settings.mode, is_ranked=is_ranked)
    return _set(policy, settings, f"-{COUNTING}-{RANKING}")


_Settings = (
    ShapeConfig
    | BudgetConfig
    | AgentConfig
    | ExactCacheConfig
    | CoalesceConfig
    | HistoryConfig
    | InputConfig
    | RoutingConfig
    | SemanticCacheConfig
    | DedupConfig
)


def _set(policy: Policy, settings: _Settings, version: str = "") -> Policy:
    """What the settings of all have. version: of what else the policy's effect rests on."""
    policy.holdout, policy.epoch = settings.holdout, epoch_of(settings) + version
    return policy
