"""The ledger as `GET /v1/ledger` shows it.

`savings` are measured against the control arm, with intervals that may be read at any time. All
that comes without a control arm to compare with is marked `estimated`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from gateway.ledger.experiments import QUALITY, Finding, findings
from gateway.stores.ledger import Experiment, LedgerStore, Look
from policies.savings import FIRST_LOOK, MISS, next_look, saving

_DAY_S = 86_400


def report(
    store: LedgerStore, now_s: float, days: float, harmful: Mapping[Experiment, str]
) -> dict[str, Any]:
    """Totals and decisions of the last `days`; experiments from their beginning."""
    since_s = now_s - days * _DAY_S
    looks, arms = store.looks(), store.arms()
    return {
        "object": "ledger",
        "days": days,
        "routes": store.totals(("route", "model"), since_s),
        "tenants": store.totals(("tenant",), since_s),
        "policies": [row | {"estimated": True} for row in store.rulings(since_s)],
        "feedback": store.labels(since_s),
        "savings": [
            _experiment(experiment, arms.get(experiment, {}), looks.get(experiment), harmful)
            for experiment in sorted({*looks, *arms})
        ],
    }


def _experiment(
    experiment: Experiment,
    arms: Mapping[Any, int],
    look: Look | None,
    harmful: Mapping[Experiment, str],
) -> dict[str, Any]:
    head = {
        "route": experiment.route,
        "policy": experiment.policy,
        "epoch": experiment.epoch,
        "conversations": {"control": arms.get("control", 0), "treated": arms.get("treated", 0)},
        "next_look": {"control": next_look(look.control if look else None), "treated": FIRST_LOOK},
        "harm": harmful.get(experiment),
        "confidence": 1 - MISS,
        "estimated": False,
    }
    if look is None:
        return head | {"looks": 0, "saved": {}, "quality": {}}
    found = findings(look)
    return head | {
        "looks": look.number,
        "looked_s": look.time_s,
        "saved": {each.measure: _saved(each) for each in found if each.measure not in QUALITY},
        "quality": {each.measure: _share(each) for each in found if each.measure in QUALITY},
    }


def _saved(finding: Finding) -> dict[str, Any]:
    """The share that is saved, and what it comes to over the whole treated arm."""
    spent = finding.treated * finding.treated_size
    return {
        "control_mean": finding.control,
        "treated_mean": finding.treated,
        "share": _bounds(finding, saving),
        # Without the policy the same would have cost spent / ratio.
        "total": _bounds(finding, lambda effect: spent * math.expm1(-effect)),
    }


def _share(finding: Finding) -> dict[str, Any]:
    """How much more of it there is with the policy."""
    return {
        "control": finding.control,
        "treated": finding.treated,
        "difference": _bounds(finding, float),
    }


def _bounds(finding: Finding, scale: Callable[[float], float]) -> dict[str, Any] | None:
    """None where the arms cannot be compared."""
    effect, shown = finding.effect, finding.interval
    if effect is None or shown is None:
        return None
    low, high = sorted((scale(shown.low), scale(shown.high)))
    return {"estimate": scale(effect), "low": low, "high": high, "shifted": shown.shifted}
