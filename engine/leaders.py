"""Which running sequence is about to publish which block, and who waits for it.

Requests that arrive together with one prefix would each compute it, since none finds it in the
cache yet. Instead the first to run leads: the others park until the blocks they share with it
are published. When a leader stops early its followers are handed back, and one of them leads.
"""

from __future__ import annotations

from engine.runner.base import BLOCK_TOKENS
from engine.sequence import Sequence


class Leaders:
    """Blocks being computed, by key, with the sequences parked on them."""

    def __init__(self) -> None:
        self._leads: dict[bytes, Sequence] = {}
        self._parked: dict[bytes, list[Sequence]] = {}
        self.num_parked = 0

    def follow(self, sequence: Sequence, first: int, end: int) -> bytes | None:
        """The key of the last block in a row, of blocks first to end, that others compute now.

        None when block `first` is nobody's: then the sequence has nothing to wait for.
        """
        last = None
        for index in range(first, end):
            key = sequence.key(index)
            if key not in self._leads:
                break
            last = key
        return last

    def lead(self, sequence: Sequence) -> None:
        """Announce the full blocks that a sequence, just started, will compute."""
        for index in range(sequence.num_blocks, sequence.num_tokens // BLOCK_TOKENS):
            self._leads.setdefault(sequence.key(index), sequence)

    def published(self, sequence: Sequence, key: bytes) -> list[Sequence]:
        """A block is in the cache. Returns the sequences that waited for it."""
        if self._leads.get(key) is sequence:
            del self._leads[key]
            return self._wake(key)
        return []

    def stop(self, sequence: Sequence) -> list[Sequence]:
        """A sequence stops running. Returns those that waited for blocks it did not finish."""
        woken = []
        for index in range(sequence.num_published, sequence.num_tokens // BLOCK_TOKENS):
            woken += self.published(sequence, sequence.key(index))
        return woken

    def park(self, sequence: Sequence, key: bytes) -> None:
        sequence.waits_for = key
        self._parked.setdefault(key, []).append(sequence)
        self.num_parked += 1

    def unpark(self, sequence: Sequence) -> None:
        """A parked sequence leaves by itself: cancelled or paused."""
        key, sequence.waits_for = sequence.waits_for, None
        if key is not None:
            followers = self._parked[key]
            followers.remove(sequence)
            self.num_parked -= 1
            if not followers:
                del self._parked[key]

    def waiting_keys(self) -> dict[bytes, list[Sequence]]:
        """Parked sequences by the key they wait for, for the invariants."""
        return self._parked

    def leader_of(self, key: bytes) -> Sequence | None:
        return self._leads.get(key)

    def __len__(self) -> int:
        return len(self._leads)

    def _wake(self, key: bytes) -> list[Sequence]:
        followers = self._parked.pop(key, [])
        self.num_parked -= len(followers)
        for follower in followers:
            follower.waits_for = None
        return followers
