"""The queue of sequences that never ran: fair between tenants, then by priority, then by deadline.

Start-time fair queueing (Goyal, Vin and Cheng 1996) over tokens: each tenant has a tag that
moves on by tokens / weight with every sequence taken, and the lowest tag is served next. A
tenant that was away gets no credit for it, and one with much waiting delays only itself.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator

from engine.sequence import Sequence

_SPARE_TAGS = 64

_Key = tuple[int, float, tuple[int, int]]


def _key(sequence: Sequence) -> _Key:
    request = sequence.request
    deadline = math.inf if request.deadline is None else request.deadline
    return (-request.priority, deadline, sequence.order)


class FairQueue:
    """Sequences in order of service. `prefill_tokens` and `output_tokens` sum up what waits."""

    def __init__(self) -> None:
        self._lines: dict[str, list[tuple[_Key, Sequence]]] = {}
        self._tags: dict[str, float] = {}
        self._now = 0.0
        self._length = 0
        self.prefill_tokens = 0
        self.output_tokens = 0

    def __len__(self) -> int:
        return self._length

    def add(self, sequence: Sequence) -> None:
        insort(self._lines.setdefault(sequence.request.tenant, []), (_key(sequence), sequence))
        self._count(sequence, 1)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out without charging its tenant."""
        tenant = sequence.request.tenant
        line = self._lines[tenant]
        del line[bisect_left(line, (_key(sequence),))]
        if not line:
            del self._lines[tenant]
        self._count(sequence, -1)

    def serve(self, sequence: Sequence) -> None:
        """Take a sequence out to run it, and charge its tenant for what it will cost."""
        tenant = sequence.request.tenant
        start = self._tag(tenant)
        cost = sequence.num_tokens + sequence.expected_tokens
        self._now = start
        self._tags[tenant] = start + cost / sequence.request.weight
        self.remove(sequence)
        if not self._lines:
            # Nobody is behind anybody any more.
            self._tags.clear()
            self._now = 0.0
        elif len(self._tags) > 2 * len(self._lines) + _SPARE_TAGS:
            self._tags = {name: tag for name, tag in self._tags.items() if tag > self._now}

    def candidates(self) -> Iterator[Sequence]:
        """Sequences in order of service. Each may be served, removed or passed over as it comes."""
        passed = dict.fromkeys(self._lines, 0)
        while passed:
            tenant = min(passed, key=lambda name: self._rank(name, passed[name]))
            line = self._lines.get(tenant, [])
            if passed[tenant] >= len(line):
                del passed[tenant]
                continue
            entry = line[passed[tenant]]
            yield entry[1]
            if passed[tenant] < len(line) and line[passed[tenant]] is entry:
                passed[tenant] += 1

    def _rank(self, tenant: str, passed: int) -> tuple[float, _Key]:
        line = self._lines.get(tenant, [])
        key = line[passed][0] if passed < len(line) else (0, 0.0, (0, 0))
        return (self._tag(tenant), key)

    def _tag(self, tenant: str) -> float:
        return max(self._now, self._tags.get(tenant, 0.0))

    def _count(self, sequence: Sequence, sign: int) -> None:
        self._length += sign
        self.prefill_tokens += sign * sequence.num_tokens
        self.output_tokens += sign * sequence.expected_tokens
