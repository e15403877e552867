"""The nearest of what was asked, bounded, and never of another's."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.cache.neighbours import Entry, Neighbours, Vector
from tests.fakes.clock import FakeClock


def vector(*numbers: float) -> Vector:
    found = np.array(numbers, np.float32)
    unit: Vector = found / np.linalg.norm(found)
    return unit


EAST, NORTH, NORTHEAST = vector(1, 0), vector(0, 1), vector(1, 1)


def entry(name: str, partition: bytes = b"p", owner: str = "ada") -> Entry:
    return Entry(partition, owner, name.encode(), None)


def add(
    neighbours: Neighbours, one: Entry, at: Vector, *, ttl_s: float = 60, most: int = 100
) -> None:
    neighbours.add(one, at, ttl_s=ttl_s, max_entries=most)


def names(
    neighbours: Neighbours, at: Vector, least: float = 0.5, partition: bytes = b"p"
) -> list[str]:
    return [found.key.decode() for _, found in neighbours.near(partition, at, least)]


def test_the_most_similar_comes_first_and_what_is_less_similar_not_at_all() -> None:
    neighbours = Neighbours()
    for name, at in (("east", EAST), ("northeast", NORTHEAST), ("north", NORTH)):
        add(neighbours, entry(name), at)
    assert names(neighbours, vector(0.9, 0.1)) == ["east", "northeast"]
    ((similarity, _), *_) = neighbours.near(b"p", EAST, 0.9)
    assert similarity == pytest.approx(1)
    assert names(neighbours, EAST, partition=b"q") == []
    assert repr(neighbours) == "<Neighbours 3 texts in 1 partitions>"


def test_partitions_know_nothing_of_one_another() -> None:
    neighbours = Neighbours()
    add(neighbours, entry("mine", b"mine"), EAST)
    add(neighbours, entry("yours", b"yours", "bob"), EAST)
    assert names(neighbours, EAST, partition=b"mine") == ["mine"]
    assert names(neighbours, EAST, partition=b"yours") == ["yours"]


def test_an_entry_ends_with_its_time() -> None:
    clock = FakeClock()
    neighbours = Neighbours(clock=clock)
    add(neighbours, entry("short"), EAST, ttl_s=10)
    add(neighbours, entry("long"), EAST, ttl_s=20)
    clock.now_s += 10
    assert names(neighbours, EAST) == ["long"]
    assert len(neighbours) == 1


def test_an_owner_keeps_what_was_used_last() -> None:
    neighbours = Neighbours()
    add(neighbours, first := entry("first"), EAST, most=2)
    add(neighbours, entry("second"), EAST, most=2)
    neighbours.use(first)
    add(neighbours, entry("third"), EAST, most=2)
    assert sorted(names(neighbours, EAST)) == ["first", "third"]


def test_the_one_who_has_most_makes_room() -> None:
    neighbours = Neighbours(max_entries=4)
    add(neighbours, entry("bob's", b"bob", "bob"), EAST)
    for number in range(9):
        add(neighbours, entry(f"ada's {number}"), EAST)
    assert len(neighbours) == 4
    assert names(neighbours, EAST, partition=b"bob") == ["bob's"]
    assert sorted(names(neighbours, EAST)) == ["ada's 6", "ada's 7", "ada's 8"]


def test_the_same_request_again_takes_its_own_place() -> None:
    neighbours = Neighbours()
    add(neighbours, entry("same"), NORTH)
    add(neighbours, entry("same"), EAST)
    assert (len(neighbours), names(neighbours, EAST)) == (1, ["same"])


def test_nothing_is_left_of_what_is_gone() -> None:
    clock = FakeClock()
    neighbours = Neighbours(clock=clock)
    for number in range(20):
        add(neighbours, entry(str(number)), vector(1, number), ttl_s=10 if number % 2 else 99)
    clock.now_s += 50
    for number in range(20):
        list(neighbours.near(b"p", vector(1, number), 0.9999, most=20))
    assert len(neighbours) == 10
    kept = {found.key.decode() for _, found in neighbours.near(b"p", vector(1, 2), 0.0, most=20)}
    assert kept == {str(number) for number in range(0, 20, 2)}
    neighbours.use(entry("1"))
