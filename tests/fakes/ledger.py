"""Lines of the ledger for tests."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from gateway.ledger.entry import Entry, Origins, Ruling

_RULING = Ruling(policy="budget", epoch="e", mode="active", arm="treated", action="keep")
_ENTRY = Entry(
    time_s=1000.0,
    route="chat",
    tenant="t",
    model="m",
    conversation="c",
    error=None,
    cut=False,
    origins=Origins(),
    prompt_tokens=10,
    completion_tokens=5,
    cached_tokens=0,
    reused_tokens=0,
    estimated=False,
    first_token_s=0.1,
    per_token_s=0.01,
    queue_ms=1.0,
    seconds=0.2,
    dollars=0.001,
)


def ruling(**fields: Any) -> Ruling:
    """Of the policy `budget`, active and treated, but for `fields`."""
    return replace(_RULING, **fields)


def an_entry(**fields: Any) -> Entry:
    """A request without rulings, all of whose prompt the user wrote, but for `fields`."""
    entry = replace(_ENTRY, **fields)
    return replace(entry, origins=Origins(user=entry.prompt_tokens))
