from __future__ import annotations

import numpy as np

from engine.queue import FairQueue
from engine.request import Request
from engine.sequence import Sequence


class Line:
    """A queue, and sequences made by a line of arguments."""

    def __init__(self) -> None:
        self.queue = FairQueue()
        self._arrivals = 0

    def add(
        self,
        name: str,
        tenant: str = "",
        *,
        tokens: int = 10,
        weight: float = 1.0,
        priority: int = 0,
        deadline: float | None = None,
    ) -> Sequence:
        self._arrivals += 1
        sequence = Sequence(
            Request(
                id=name,
                prompts=[np.zeros(tokens, np.int32)],
                tenant=tenant,
                weight=weight,
                priority=priority,
                deadline=deadline,
            ),
            0,
            arrival_number=self._arrivals,
            max_tokens=10,
            expected_tokens=10,
            seed=0,
            end_ids=frozenset(),
            root=b"",
        )
        self.queue.add(sequence)
        return sequence

    def serve(self, count: int | None = None) -> list[str]:
        """Names in order of service."""
        served: list[str] = []
        for sequence in self.queue.candidates():
            if len(served) == count:
                break
            self.queue.serve(sequence)
            served.append(sequence.request.id)
        return served


def test_one_tenant_is_served_in_order_of_arrival() -> None:
    line = Line()
    for name in "abc":
        line.add(name)
    assert line.serve() == ["a", "b", "c"]
    assert len(line.queue) == 0


def test_priority_comes_before_deadline_and_deadline_before_arrival() -> None:
    line = Line()
    line.add("arrival")
    line.add("late", deadline=9.0)
    line.add("soon", deadline=1.0)
    line.add("urgent", priority=1)
    line.add("idle", priority=-1, deadline=0.5)
    assert line.serve() == ["urgent", "soon", "late", "arrival", "idle"]


def test_tenants_take_turns_however_much_one_of_them_queues() -> None:
    line = Line()
    for index in range(6):
        line.add(f"a{index}", "a")
    line.add("b0", "b")
    line.add("b1", "b")
    assert line.serve(4) == ["a0", "b0", "a1", "b1"]


def test_turns_are_shared_by_tokens_and_not_by_requests() -> None:
    line = Line()
    for index in range(8):
        line.add(f"long{index}", "a", tokens=50)
        line.add(f"short{index}", "b", tokens=5)
    served = line.serve(8)
    assert sum(name.startswith("short") for name in served) == 6


def test_weight_gives_a_larger_share() -> None:
    line = Line()
    for index in range(12):
        line.add(f"a{index}", "a", weight=3.0)
        line.add(f"b{index}", "b")
    served = line.serve(8)
    assert sum(name.startswith("a") for name in served) == 6


def test_a_tenant_that_was_away_gets_no_credit() -> None:
    line = Line()
    for index in range(8):
        line.add(f"a{index}", "a")
    line.serve(4)
    for index in range(4):
        line.add(f"b{index}", "b")
    assert line.serve(4) == ["b0", "a4", "b1", "a5"]


def test_debts_are_forgotten_when_nobody_waits() -> None:
    line = Line()
    line.add("a", "a", tokens=1000)
    line.serve()
    line.add("b", "b")
    line.add("c", "a")
    assert line.serve() == ["b", "c"]
    assert not line.queue._tags


def test_tags_of_many_tenants_stay_bounded() -> None:
    line = Line()
    line.add("stays", "x", tokens=10**6)
    for index in range(1000):
        line.add(f"t{index}", f"tenant{index}", priority=1)
        line.add("y", "y", tokens=10**4, priority=1)
        line.serve(2)
    assert len(line.queue._tags) < 200


def test_passing_over_keeps_the_place() -> None:
    line = Line()
    for name in "abc":
        line.add(name)
    assert [sequence.request.id for sequence in line.queue.candidates()] == ["a", "b", "c"]
    assert line.serve() == ["a", "b", "c"]


def test_removing_while_walking() -> None:
    line = Line()
    for name in "abcd":
        line.add(name, "x" if name in "ab" else "y")
    seen = []
    for sequence in line.queue.candidates():
        seen.append(sequence.request.id)
        if sequence.request.id in "ad":
            line.queue.remove(sequence)
    assert sorted(seen) == ["a", "b", "c", "d"]
    assert sorted(line.serve()) == ["b", "c"]


def test_sums_follow() -> None:
    line = Line()
    first = line.add("a", tokens=7)
    line.add("b", tokens=5)
    assert (line.queue.prefill_tokens, line.queue.output_tokens) == (12, 20)
    line.queue.remove(first)
    assert (line.queue.prefill_tokens, line.queue.output_tokens, len(line.queue)) == (5, 10, 1)
