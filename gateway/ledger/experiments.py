"""What the two arms of a holdout say: what a policy saves, and whether it does harm.

All of it is measured against the control arm, with the intervals of `policies.savings`.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec
from msgspec.structs import replace

from gateway.stores.ledger import MEASURED, Experiment, LedgerStore, Look
from policies.savings import (
    FIRST_LOOK,
    Clusters,
    Interval,
    difference,
    interval,
    next_look,
    ratio,
)

Rows = list[tuple[float, ...]]


class Measure(msgspec.Struct, frozen=True):
    """Something of the conversations that is compared.

    of:    columns that are summed up
    per:   for each request or for each conversation. A policy that makes people ask again saves
           on each request and may cost more on the whole
    scale: `ratio` of treated to control, or the `difference` of two shares
    """

    name: str
    of: tuple[str, ...]
    per: Literal["request", "conversation"] = "request"
    scale: Literal["ratio", "difference"] = "ratio"


MEASURES = (
    Measure("completion_tokens", ("completion_tokens",)),
    Measure("prompt_tokens", ("prompt_tokens",)),
    Measure("seconds", ("seconds",)),
    Measure("dollars", ("dollars",)),
    Measure("conversation_tokens", ("prompt_tokens", "completion_tokens"), per="conversation"),
    Measure("conversation_dollars", ("dollars",), per="conversation"),
    Measure("conversation_requests", ("requests",), per="conversation"),
    Measure("cut_share", ("cut",), scale="difference"),
    Measure("failed_share", ("failed",), scale="difference"),
)


class Finding(msgspec.Struct, frozen=True):
    """One measure at one look.

    control, treated: its mean in each arm
    treated_size:     requests, or conversations, of the treated arm
    effect:           of treated against control: logarithm of their ratio, or their difference.
                      None, like the interval, where the arms cannot be compared: nothing was
                      spent, or by one conversation alone
    """

    measure: str
    control: float
    treated: float
    treated_size: float
    effect: float | None = None
    interval: Interval | None = None


def due(counts: dict[Literal["treated", "control"], int], last: Look | None) -> bool:
    """Is it time to look again? Depends on the sizes of the arms alone, never on their content."""
    needed = next_look(last.control if last else None)
    return counts.get("control", 0) >= needed and counts.get("treated", 0) >= FIRST_LOOK


def look(store: LedgerStore, experiment: Experiment, last: Look | None, time_s: float) -> Look:
    """Compare the arms as they are now. Reads all conversations of the experiment."""
    control = store.conversations(experiment, "control")
    treated = store.conversations(experiment, "treated")
    number = last.number + 1 if last else 1
    earlier = {finding.measure: finding.interval for finding in findings(last)} if last else {}
    found = [
        _compare(measure, control, treated, number, earlier.get(measure.name))
        for measure in MEASURES
    ]
    return Look(experiment, number, time_s, len(control), len(treated), msgspec.json.encode(found))


def findings(look: Look) -> list[Finding]:
    return msgspec.json.decode(look.found, type=list[Finding])


def harm(look: Look) -> str | None:
    """What the policy makes worse with confidence, for people; None when nothing.

    Cost is of whole conversations, in money where models have a price. Whatever the interval of
    that leaves open is no harm.
    """
    by_name = {finding.measure: finding for finding in findings(look)}
    cost = by_name["conversation_dollars"]
    if cost.interval is None:
        cost = by_name["conversation_tokens"]
    for finding, what in (
        (cost, "conversations cost more"),
        (by_name["failed_share"], "more requests fail"),
    ):
        if finding.interval is not None and finding.interval.low > 0:
            return (
                f"{what}: {finding.treated:.4g} against {finding.control:.4g} without it "
                f"({finding.measure})"
            )
    return None


def _compare(
    measure: Measure, control: Rows, treated: Rows, number: int, earlier: Interval | None
) -> Finding:
    without, under = _clusters(measure, control), _clusters(measure, treated)
    size = _total(under, 1)
    means = Finding(
        measure.name, _total(without, 0) / _total(without, 1), _total(under, 0) / size, size
    )
    comparison = (ratio if measure.scale == "ratio" else difference)(without, under)
    if comparison is None:
        return means
    shown = interval(comparison, number).within(earlier)
    return replace(means, effect=comparison.effect, interval=shown)


def _clusters(measure: Measure, rows: Rows) -> Clusters:
    of = [MEASURED.index(name) for name in measure.of]
    requests = MEASURED.index("requests")
    if measure.per == "conversation":
        return [(sum(row[column] for column in of), 1.0) for row in rows]
    return [(sum(row[column] for column in of), row[requests]) for row in rows]


def _total(clusters: Clusters, place: int) -> float:
    return math.fsum(cluster[place] for cluster in clusters)
