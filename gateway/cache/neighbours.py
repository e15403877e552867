"""The nearest of many texts, within a partition that its owner's secret is in.

All vectors of a partition are rows of one matrix: a search is one product, 0.4 ms for 10,000 rows.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.reading import Reading

MAX_ENTRIES = 20_000
"""Of all tenants together: 20 MB of vectors, and about as much of readings."""

_FIRST_ROWS = 4

Vector = NDArray[np.float32]


class Entry(msgspec.Struct, frozen=True):
    """partition: what it is looked for in
    owner:     among whose entries it counts
    key:       what the answer is kept under
    reading:   None for a text that is not compared word by word
    """

    partition: bytes
    owner: str
    key: bytes
    reading: Reading | None


class _Partition:
    """Entries, until when each counts, and their vectors as the first rows of a matrix."""

    def __init__(self, dimensions: int) -> None:
        self.entries: list[Entry] = []
        self.expires_s: list[float] = []
        self._vectors = np.zeros((_FIRST_ROWS, dimensions), np.float32)

    def add(self, entry: Entry, vector: Vector, expires_s: float) -> None:
        rows = len(self.entries)
        if rows == len(self._vectors):
            self._vectors = np.concatenate([self._vectors, np.zeros_like(self._vectors)])
        self._vectors[rows] = vector
        self.entries.append(entry)
        self.expires_s.append(expires_s)

    def remove(self, key: bytes) -> None:
        """The last row takes its place."""
        row = next(row for row, entry in enumerate(self.entries) if entry.key == key)
        last, expires_s = self.entries.pop(), self.expires_s.pop()
        if last.key != key:
            self.entries[row], self.expires_s[row] = last, expires_s
            self._vectors[row] = self._vectors[len(self.entries)]

    def similarities(self, vector: Vector) -> Vector:
        # On one thread: a product by BLAS is twice as fast on an idle machine, and waits for other
        # threads on a busy one (22 ms in place of 0.4).
        found: Vector = np.einsum("ij,j->i", self._vectors[: len(self.entries)], vector)
        return found


class Neighbours:
    """Bounded: of an owner's entries, and of all, the least recently used go first; of all, those
    of the owner that has most, so that none drives out another's.

    clock: seconds that only go forward
    """

    def __init__(
        self, max_entries: int = MAX_ENTRIES, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_entries = max_entries
        self._clock = clock
        self._partitions: dict[bytes, _Partition] = {}
        self._owners: dict[str, OrderedDict[bytes, bytes]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<Neighbours {self._count} texts in {len(self._partitions)} partitions>"

    def near(
        self, partition: bytes, vector: Vector, least: float, most: int = 8
    ) -> Iterator[tuple[float, Entry]]:
        """Entries that are at least so similar, `most` of them, the most similar first."""
        found = self._partitions.get(partition)
        if found is None:
            return
        similarities = found.similarities(vector)
        rows = np.flatnonzero(similarities >= least)
        rows = rows[np.argsort(-similarities[rows], kind="stable")][:most]
        now_s = self._clock()
        # Whoever reads this may wait between two of them, and rows move meanwhile.
        nearest = [
            (float(similarities[row]), found.entries[row], found.expires_s[row]) for row in rows
        ]
        for similarity, entry, expires_s in nearest:
            if expires_s > now_s:
                yield similarity, entry
            else:
                self._drop(entry.owner, entry.key)

    def add(self, entry: Entry, vector: Vector, *, ttl_s: float, max_entries: int) -> None:
        """In the place of one of the same key. max_entries: that the owner may have."""
        owner, key = entry.owner, entry.key
        self._drop(owner, key)
        owned = self._owners.setdefault(owner, OrderedDict())
        found = self._partitions.setdefault(entry.partition, _Partition(len(vector)))
        found.add(entry, vector, self._clock() + ttl_s)
        owned[key] = entry.partition
        self._count += 1
        while len(owned) > max_entries:
            self._drop(owner, next(iter(owned)))
        while self._count > self._max_entries:
            most = max(self._owners, key=lambda name: len(self._owners[name]))
            self._drop(most, next(iter(self._owners[most])))

    def use(self, entry: Entry) -> None:
        """It was of use: it goes last."""
        if entry.key in (owned := self._owners.get(entry.owner, OrderedDict())):
            owned.move_to_end(entry.key)

    def _drop(self, owner: str, key: bytes) -> None:
        owned = self._owners.get(owner)
        name = None if owned is None else owned.pop(key, None)
        if owned is None or name is None:
            return
        self._partitions[name].remove(key)
        self._count -= 1
        if not self._partitions[name].entries:
            del self._partitions[name]
        if not owned:
            del self._owners[owner]
