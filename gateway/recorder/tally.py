"""What a replay counts: by route what was and what would be, by policy what it would do."""

from __future__ import annotations

import msgspec


class Sums(msgspec.Struct):
    """Of the requests of one route, as recorded or as replayed.

    generations: answers that a model had to make
    prompt_tokens: of their prompts, as `policies.counting` counts them
    completion_tokens: of their answers; replayed, at most: what was written, up to the new limit
    cut_short:   replayed: answers that were longer than their new limit
    open_ended:  replayed: that were cut, and would have gone on
    """

    generations: int = 0
    hits: int = 0
    joined: int = 0
    answered: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cut_short: int = 0
    open_ended: int = 0


class RouteTally(msgspec.Struct):
    """failed: requests of the recording that had no answer; they are replayed too"""

    route: str
    requests: int = 0
    failed: int = 0
    recorded: Sums = msgspec.field(default_factory=Sums)
    replayed: Sums = msgspec.field(default_factory=Sums)


class PolicyTally(msgspec.Struct):
    """recorded: requests that it changed, or refused or answered, in the recording
    touched:  that it would change now, its holdout's control arm left out; of a shadow, would
    asked_tokens, allowed_tokens: of output, of those whose limit it lowers
    prompt_before, prompt_after: tokens, of those whose prompt it changes
    """

    route: str
    policy: str
    mode: str
    requests: int = 0
    recorded: int = 0
    touched: int = 0
    held_out: int = 0
    prompt_before: int = 0
    prompt_after: int = 0
    asked_tokens: int = 0
    allowed_tokens: int = 0
    refused: int = 0
    reused: int = 0


class Missing(msgspec.Struct, frozen=True, order=True):
    """A policy that was not replayed, and why."""

    route: str
    policy: str
    reason: str


class Result(msgspec.Struct):
    """unknown: requests of routes that the configuration does not have, by route"""

    requests: int
    unreadable: int
    routes: list[RouteTally]
    policies: list[PolicyTally]
    missing: list[Missing]
    unknown: dict[str, int]
