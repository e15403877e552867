"""What an answer costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Price
from gateway.ledger.machine import Machine, dollars
from gateway.telemetry.metrics import Spent
from tests.fakes.clock import FakeClock


def test_who_is_alone_pays_for_all_of_it() -> None:
    clock = FakeClock()
    machine = Machine(clock)
    clock.now_s = 100
    entered_s = machine.enter()
    clock.now_s = 107
    assert machine.leave(entered_s) == 7


def test_those_who_are_there_at_once_share_the_time() -> None:
    clock = FakeClock()
    machine = Machine(clock)
    first = machine.enter()
    clock.now_s = 10
    second = machine.enter()
    clock.now_s = 14
    assert machine.leave(first) == 12
    clock.now_s = 15
    assert machine.leave(second) == 3


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=20))
def test_together_they_pay_for_the_time_in_which_it_had_work(
    stays: list[tuple[float, float]],
) -> None:
    clock = FakeClock()
    machine = Machine(clock)
    events = [(begin, 1, i) for i, (begin, _) in enumerate(stays)]
    events += [(begin + length, 2, i) for i, (begin, length) in enumerate(stays)]
    entered: dict[int, float] = {}
    paid_s = busy_s = 0.0
    for at_s, kind, i in sorted(events):
        busy_s += (at_s - clock.now_s) * bool(entered)
        clock.now_s = at_s
        if kind == 1:
            entered[i] = machine.enter()
        else:
            paid_s += machine.leave(entered.pop(i))
    assert paid_s == pytest.approx(busy_s, abs=1e-6)


@pytest.mark.parametrize(
    ("price", "cost"),
    [
        (None, None),
        (Price(), 0.0),
        (Price(input=2.0, output=6.0), 0.05),
        (Price(machine_hour=1.8), 0.001),
        (Price(input=2.0, output=6.0, machine_hour=1.8), 0.001),
    ],
)
def test_prices(price: Price | None, cost: float | None) -> None:
    found = dollars(price, Spent(10_000, 5_000), machine_s=2.0)
    assert found == (cost if cost is None else pytest.approx(cost))
