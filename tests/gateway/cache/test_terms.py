"""What policies, arms and the client's header allow together."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.cache.control import ANY, CacheControl
from gateway.cache.terms import Terms, terms_of
from gateway.verdict import Verdict
from policies.base import Mode, Policy
from policies.budget import BudgetPolicy
from policies.cache import ExactCachePolicy
from policies.coalesce import CoalescePolicy
from policies.decision import keep
from policies.holdout import Arm
from policies.request import Request

GREEDY = Request("chat", "chat", parameters={"temperature": 0})
ALL = {"read": True, "write": True, "join": True, "share": True}


def verdicts(mode: Mode = "active", arm: Arm | None = None, **cache: Any) -> list[Verdict]:
    policies: list[Policy] = [
        BudgetPolicy(5),
        ExactCachePolicy(mode, ttl_s=60, **cache),
        CoalescePolicy(mode),
    ]
    return [Verdict(policy, keep(""), GREEDY, mode, arm) for policy in policies]


def allowed(terms: Terms) -> dict[str, bool]:
    return {name: getattr(terms, name) for name in ALL}


def test_a_deterministic_request_shares_everything() -> None:
    terms = terms_of(verdicts(), GREEDY, ANY)
    assert allowed(terms) == ALL
    assert (terms.ttl_s, terms.keep_cut, terms.is_alone) == (60, True, False)
    assert allowed(terms_of(verdicts(arm="treated"), GREEDY, ANY)) == ALL


@pytest.mark.parametrize(
    ("control", "denied"),
    [
        (CacheControl(no_cache=True), {"read", "join"}),
        (CacheControl(no_store=True), {"write", "share"}),
        (CacheControl(no_cache=True, no_store=True), set(ALL)),
    ],
)
def test_the_client_narrows(control: CacheControl, denied: set[str]) -> None:
    terms = terms_of(verdicts(), GREEDY, control)
    assert allowed(terms) == {name: name not in denied for name in ALL}
    assert terms.is_alone == (denied == set(ALL))


def test_the_control_arm_has_nothing_to_do_with_others() -> None:
    assert terms_of(verdicts(arm="control"), GREEDY, ANY).is_alone


def test_a_sampled_request_is_alone_unless_the_route_says_otherwise() -> None:
    sampled = Request("chat", "chat")
    assert terms_of(verdicts(), sampled, ANY) == Terms()
    terms = terms_of(verdicts(sampled=True, keep_cut=False), sampled, ANY)
    assert allowed(terms) == {"read": True, "write": True, "join": False, "share": False}
    assert not terms.keep_cut


def test_a_shadow_only_reports() -> None:
    terms = terms_of(verdicts("shadow"), GREEDY, ANY)
    assert allowed(terms) == dict.fromkeys(ALL, False)
    assert (terms.shadow_cache, terms.shadow_coalesce, terms.is_alone) == (True, True, False)
