"""The policy `route`, made from a route's settings."""

from __future__ import annotations

from gateway.config_policies import RoutingConfig, RuleConfig
from gateway.routing.loading import router_of
from policies.route import Cascade, Learned, RoutePolicy
from policies.router_model import RouterModel
from policies.rules import Rule


def routing_policy(own: str, settings: RoutingConfig) -> RoutePolicy:
    """own: the route's model. Loads the text embedding only where a router needs it."""
    cascade, router = settings.cascade, settings.router
    return RoutePolicy(
        settings.mode,
        own,
        [_rule(rule) for rule in settings.rules],
        weak=settings.weak or own,
        strong=settings.strong or own,
        learned=None if router is None else _learned(settings, router),
        cascade=None
        if cascade is None
        else Cascade(cascade.tokens, cascade.min_margin, cascade.wait_ms),
        per=settings.per,
    )


def _rule(rule: RuleConfig) -> Rule:
    return Rule(
        rule.model,
        min_tokens=rule.min_prompt_tokens,
        max_tokens=rule.max_prompt_tokens,
        has=rule.has,
        script=rule.script,
        pattern=rule.pattern,
    )


def _learned(settings: RoutingConfig, model: RouterModel) -> Learned:
    threshold = settings.threshold
    if threshold is None:
        threshold = model.threshold(settings.strong_share or 0.0)
    return Learned(router_of(model), threshold)
