"""What the two arms of a holdout say: what a policy saves, and whether it does harm.

All of it is measured against the control arm, with the intervals of `policies.savings`.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec
from msgspec.structs import replace

from gateway.stores.ledger import Experiment, LedgerStore, Look
from gateway.stores.ledger_schema import MEASURED
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
    per:   for each request, for each that somebody has rated, or for each conversation. A policy
           that makes people ask again saves on each request and may cost more on the whole
    scale: `ratio` of treated to control, or the `difference` of two shares
    least: conversations of each arm without which nothing is compared
    """

    name: str
    of: tuple[str, ...]
    per: Literal["request", "rated", "conversation"] = "request"
    scale: Literal["ratio", "difference"] = "ratio"
    least: int = 1


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
    Measure("unparsed_share", ("unparsed",), scale="difference"),
    Measure("repeated_share", ("repeated",), scale="difference"),
    Measure("approval", ("approval",), per="rated", scale="difference", least=20),
)
QUALITY = tuple(measure.name for measure in MEASURES if measure.scale == "difference")
"""Signals of quality. Their intervals hold together: of policies that do no harm, up to 8 % were
found to do some by one of four signals at 95 % each, and 1 % by intervals that share the 5 %."""

_HARM = {
    "failed_share": (1, "more requests fail"),
    "unparsed_share": (1, "more answers cannot be parsed"),
    "repeated_share": (1, "more questions are asked again"),
    "approval": (-1, "people like the answers less"),
}
"""By measure, which way is worse. Not cut_share: to end answers at a limit is what `budget` is for,
and what it costs people shows in the others."""


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
    if _is_clear(cost, 1):
        return _told(cost, "conversations cost more")
    for measure, (worse, what) in _HARM.items():
        # A look of an earlier version knew fewer measures.
        if (finding := by_name.get(measure)) is not None and _is_clear(finding, worse):
            return _told(finding, what)
    return None


def _is_clear(finding: Finding, sign: int) -> bool:
    """Does the whole interval lie on that side of zero?"""
    shown = finding.interval
    return shown is not None and (shown.low > 0 if sign > 0 else shown.high < 0)


def _told(finding: Finding, what: str) -> str:
    return (
        f"{what}: {finding.treated:.4g} against {finding.control:.4g} without it "
        f"({finding.measure})"
    )


def _compare(
    measure: Measure, control: Rows, treated: Rows, number: int, earlier: Interval | None
) -> Finding:
    without, under = _clusters(measure, control), _clusters(measure, treated)
    means = Finding(measure.name, _mean(without), _mean(under), _total(under, 1))
    if min(len(without), len(under)) < measure.least:
        return means
    comparison = (ratio if measure.scale == "ratio" else difference)(without, under)
    if comparison is None:
        return means
    among = len(QUALITY) if measure.name in QUALITY else 1
    shown = interval(comparison, number, among).within(earlier)
    return replace(means, effect=comparison.effect, interval=shown)


def _clusters(measure: Measure, rows: Rows) -> Clusters:
    of = [MEASURED.index(name) for name in measure.of]
    if measure.per == "conversation":
        return [(sum(row[column] for column in of), 1.0) for row in rows]
    size = MEASURED.index("rated" if measure.per == "rated" else "requests")
    return [(sum(row[column] for column in of), row[size]) for row in rows if row[size]]


def _mean(clusters: Clusters) -> float:
    """0 for an arm of which nothing is known."""
    return _total(clusters, 0) / (_total(clusters, 1) or 1.0)


def _total(clusters: Clusters, place: int) -> float:
    return math.fsum(cluster[place] for cluster in clusters)
