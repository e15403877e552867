"""What a client is told in headers about the way its request went.

By default what changed, or would have: few clients read more, and proxies bound all headers
together (nginx with 4 or 8 KiB). With `x-fewer-debug: true` every policy's whole record: the token
arithmetic, the arm, the name of its settings, the time it took. Reasons are shortened, and then
the last policies left out, before a header becomes longer than its limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.verdict import Verdict
from gateway.visit import Visit
from policies.context import Context

MAX_DECISIONS_BYTES = 1024
MAX_RECORD_BYTES = 4096
"""With `x-fewer-debug`."""

_REASON_CHARS = (1000, 120, 0)
"""Tried in this order until the header fits."""

Headers = list[tuple[bytes, bytes]]


def told(
    visit: Visit, verdicts: list[Verdict], context: Context, degraded: Mapping[str, str]
) -> Headers:
    """The headers of an answer that begins now.

    degraded: by policy, what the model that answers does less well than was decided
    """
    found: dict[str, bytes] = {
        "x-fewer-route": context.route.encode(),
        "x-fewer-model": visit.model.encode(),
        "x-fewer-cache": visit.cache.encode(),
    }
    if visit.saved_tokens:
        found["x-fewer-tokens-saved"] = b"%d" % visit.saved_tokens
    if visit.similarity is not None:
        found["x-fewer-similarity"] = b"%.3f" % visit.similarity
    if visit.debug:
        entries = [_record(each, degraded) for each in verdicts]
        found["x-fewer-decisions"] = _fitted(entries, MAX_RECORD_BYTES)
        found["x-fewer-debug"] = orjson.dumps(_about(visit, verdicts, context))
    else:
        entries = [_short(each, degraded) for each in verdicts if each.decision.action != "keep"]
        found["x-fewer-decisions"] = _fitted(entries, MAX_DECISIONS_BYTES)
    return [(name.encode(), value) for name, value in found.items() if value]


def _short(verdict: Verdict, degraded: Mapping[str, str]) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "policy": verdict.policy.name,
        "mode": verdict.mode,
        "action": verdict.decision.action,
        "reason": verdict.decision.reason,
    }
    if (less := degraded.get(verdict.policy.name)) is not None and verdict.applied is not None:
        entry["degraded"] = less
    return entry | {"arm": verdict.arm} if verdict.arm else entry


def _record(verdict: Verdict, degraded: Mapping[str, str]) -> dict[str, Any]:
    """asked, allowed: output tokens; before, after: prompt tokens; us: time of the decision."""
    decision, entry = verdict.decision, _short(verdict, degraded)
    entry["epoch"] = verdict.policy.epoch
    entry["obeyed"] = verdict.obeyed
    if decision.tokens is not None:
        entry |= {"asked": decision.tokens.asked, "allowed": decision.tokens.allowed}
    if decision.prompt is not None:
        entry |= {"before": decision.prompt.before, "after": decision.prompt.after}
    return entry | {"us": round(verdict.took_s * 1e6)}


def _about(visit: Visit, verdicts: list[Verdict], context: Context) -> dict[str, Any]:
    """ms: from the request's arrival to these headers."""
    return {
        "tenant": context.tenant,
        "conversation": context.conversation,
        "policies_us": round(sum(verdict.took_s for verdict in verdicts) * 1e6),
        "ms": round(visit.seconds * 1e3, 3),
    }


def _fitted(entries: list[dict[str, Any]], limit_bytes: int) -> bytes:
    """As JSON in no more than that. What is left out is counted in a last entry."""
    for chars in _REASON_CHARS:
        shortened = [_with_reason(entry, chars) for entry in entries]
        if len(text := orjson.dumps(shortened)) <= limit_bytes:
            return text
    kept = shortened
    while len(text) > limit_bytes:
        kept = kept[:-1]
        text = orjson.dumps([*kept, {"left_out": len(entries) - len(kept)}])
    return text


def _with_reason(entry: dict[str, Any], chars: int) -> dict[str, Any]:
    # Headers are ASCII; so are reasons, by their contract.
    reason = entry["reason"].encode("ascii", "replace").decode()
    return entry | {"reason": reason if len(reason) <= chars else f"{reason[:chars]}..."}
