"""The KV pool: which block of the executor's memory is free, cached, or owned.

A block of BLOCK_TOKENS tokens is in exactly one of three places:

    free    nobody names it and its content is worthless       `_free`, a stack
    cached  nobody names it, but its content has a known key   `_idle`, least recently used first
    owned   `refs` block tables name it; it may have a key

Free and cached blocks both count as free: a cached one is given away when the stack is empty.
Only full blocks get a key, and only after the step that filled them has ended, so that a hit
never reads what is still being written. Plain integers throughout: no tensor, no clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from engine.protocol.errors import InternalFault


class KVPool:
    """Reference-counted blocks with an O(1) free list and a prefix cache over the idle ones."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.reset()

    def reset(self) -> None:
        """Make every block free and forget the cache. No block table may be alive."""
        self._refs = [0] * self.num_blocks
        self._free = list(range(self.num_blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._contents: list[tuple[bytes, bytes] | None] = [None] * self.num_blocks
        self._by_key: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be had now, cached ones included."""
        return len(self._free) + len(self._idle)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody names and that still hold a known prefix."""
        return len(self._idle)

    @property
    def usage_ratio(self) -> float:
        """Owned blocks over all blocks, in [0, 1]."""
        return 1.0 - self.num_free / self.num_blocks

    def refs(self, block: int) -> int:
        """How many block tables name this block."""
        return self._refs[block]

    def allocate(self) -> int:
        """A block of the caller's own; the least recently used cached one if none is free.

        Raises `InternalFault` when every block is owned: callers look at `num_free` first.
        """
        if self._free:
            block = self._free.pop()
        elif self._idle:
            block, _ = self._idle.popitem(last=False)
            self._forget(block)
        else:
            raise InternalFault("The KV pool has no free block. This is a bug in the scheduler.")
        self._refs[block] = 1
        return block

    def share(self, block: int) -> None:
        """Name a published block once more; one that was idle is owned from now on."""
        if self._refs[block] == 0:
            del self._idle[block]
        self._refs[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Give up a whole block table.

        The tail goes first and is therefore evicted first: a prefix without its tail can still
        be hit, a tail without its prefix cannot.
        """
        for block in reversed(blocks):
            self._refs[block] -= 1
            if self._refs[block] == 0:
                if self._contents[block] is None:
                    self._free.append(block)
                else:
                    self._idle[block] = None

    def publish(self, block: int, key: bytes, tokens: bytes) -> None:
        """Make a full, owned block findable. The first block published under a key keeps it."""
        if key not in self._by_key and self._contents[block] is None:
            self._by_key[key] = block
            self._contents[block] = (key, tokens)

    def find(self, key: bytes, tokens: bytes) -> int | None:
        """The block published under `key`, if it holds exactly these tokens (int32 bytes)."""
        block = self._by_key.get(key)
        if block is None or self._contents[block] != (key, tokens):
            return None
        return block

    def _forget(self, block: int) -> None:
        content = self._contents[block]
        if content is not None:
            del self._by_key[content[0]]
            self._contents[block] = None

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Prove that every block is free, cached or owned, and that the counts add up.

        tables: the block table of every sequence that holds blocks. Raises `InternalFault`
        that names the first block at fault.
        """
        named = [0] * self.num_blocks
        for table in tables:
            for block in table:
                named[block] += 1
        free = set(self._free)
        if len(free) != len(self._free):
            raise InternalFault("The KV pool's free list names a block twice.")
        for block in range(self.num_blocks):
            self._check_block(block, named[block], block in free)
        published = sum(content is not None for content in self._contents)
        if published != len(self._by_key):
            raise InternalFault(
                f"The KV pool has {published} published blocks but {len(self._by_key)} keys."
            )

    def _check_block(self, block: int, named: int, free: bool) -> None:
        content, idle = self._contents[block], block in self._idle
        if self._refs[block] != named:
            raise InternalFault(
                f"KV block {block} has {self._refs[block]} references, "
                f"but {named} block tables name it."
            )
        if free + idle + (named > 0) != 1:
            raise InternalFault(
                f"KV block {block} must be in one place, not: free={free}, "
                f"cached={idle}, owners={named}."
            )
        if (free and content is not None) or (idle and content is None):
            raise InternalFault(f"KV block {block} is in the wrong list for its content.")
        if content is not None and self._by_key.get(content[0]) != block:
            raise InternalFault(f"KV block {block} is published under a key that is not its own.")

    def __repr__(self) -> str:
        owned = self.num_blocks - self.num_free
        return f"<KVPool blocks={self.num_blocks} owned={owned} cached={self.num_cached}>"
