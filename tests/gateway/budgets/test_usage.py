"""How far limits have come, of many of them."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.budgets.limits import Limits, Subject
from gateway.budgets.usage import LOOKED_AT_ONCE, standings
from gateway.stores.budget import State, Take


class Counted:
    """Says of each counter how many were asked about with it."""

    async def look(self, takes: Sequence[Take]) -> tuple[State, ...]:
        return tuple(State(len(takes), 0.0, 0.0) for _ in takes)


async def test_many_limits_are_looked_at_in_parts() -> None:
    """All of 5,000 keys in one step held up every request meanwhile, and passed the deadline."""
    limits = Limits(requests_per_minute=1, budget_tokens=1)
    subjects = [Subject("key", f"k{number}", limits) for number in range(LOOKED_AT_ONCE)]
    found = await standings(Counted(), subjects, 1_780_000_000.0)
    assert len(found) == 2 * LOOKED_AT_ONCE
    assert {standing.state.used for standing in found} == {LOOKED_AT_ONCE}
    assert [each.claim.subject for each in found[::2]] == subjects
    assert await standings(Counted(), [], 0.0) == ()
