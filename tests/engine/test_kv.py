from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.kv import KVPool
from engine.prefix import child_key, root_key
from engine.protocol.errors import InternalFault


def published(pool: KVPool, name: str) -> int:
    block = pool.allocate()
    pool.publish(block, name.encode(), name.encode())
    return block


def test_every_block_can_be_had_once() -> None:
    pool = KVPool(4)
    assert sorted(pool.allocate() for _ in range(4)) == [0, 1, 2, 3]
    with pytest.raises(InternalFault, match="no free block"):
        pool.allocate()


def test_released_blocks_without_a_key_are_free() -> None:
    pool = KVPool(2)
    table = [pool.allocate(), pool.allocate()]
    assert pool.usage_ratio == 1.0
    pool.release(table)
    assert (pool.num_free, pool.num_cached, pool.usage_ratio) == (2, 0, 0.0)
    pool.check([])


def test_released_blocks_with_a_key_are_cached_and_count_as_free() -> None:
    pool = KVPool(2)
    block = published(pool, "a")
    pool.release([block])
    assert (pool.num_free, pool.num_cached) == (2, 1)
    assert pool.find(b"a", b"a") == block


def test_a_hit_compares_tokens() -> None:
    pool = KVPool(1)
    published(pool, "a")
    assert pool.find(b"a", b"other tokens under the same hash") is None


def test_sharing_takes_an_idle_block_out_of_eviction() -> None:
    pool = KVPool(2)
    block = published(pool, "a")
    pool.release([block])
    pool.share(block)
    pool.allocate()
    with pytest.raises(InternalFault):
        pool.allocate()
    assert pool.find(b"a", b"a") == block


def test_a_shared_block_stays_until_its_last_owner_leaves() -> None:
    pool = KVPool(1)
    block = published(pool, "a")
    pool.share(block)
    pool.release([block])
    assert (pool.refs(block), pool.num_free) == (1, 0)
    pool.release([block])
    assert pool.num_free == 1


def test_eviction_takes_the_least_recently_used_and_tails_before_heads() -> None:
    pool = KVPool(4)
    old = [published(pool, "old head"), published(pool, "old tail")]
    new = [published(pool, "new head"), published(pool, "new tail")]
    pool.release(old)
    pool.release(new)
    assert [pool.allocate() for _ in range(4)] == [old[1], old[0], new[1], new[0]]
    assert pool.find(b"old head", b"old head") is None


def test_free_blocks_are_used_before_cached_ones() -> None:
    pool = KVPool(2)
    pool.release([published(pool, "a")])
    pool.allocate()
    assert pool.num_cached == 1


def test_the_first_block_published_under_a_key_keeps_it() -> None:
    pool = KVPool(2)
    first, second = published(pool, "a"), published(pool, "a")
    assert pool.find(b"a", b"a") == first
    pool.release([second])
    assert pool.num_cached == 0
    pool.check([[first]])


def test_reset_forgets_everything() -> None:
    pool = KVPool(3)
    pool.release([published(pool, "a")])
    pool.reset()
    assert (pool.num_free, pool.num_cached) == (3, 0)
    assert pool.find(b"a", b"a") is None


def test_check_names_what_is_wrong() -> None:
    pool = KVPool(3)
    table = [pool.allocate()]
    pool.check([table])
    with pytest.raises(InternalFault, match="1 references, but 0 block tables"):
        pool.check([])
    with pytest.raises(InternalFault, match="1 references, but 2 block tables"):
        pool.check([table, table])


def test_check_finds_a_block_that_was_freed_twice() -> None:
    pool = KVPool(3)
    table = [pool.allocate()]
    pool.release(table)
    pool._free.append(table[0])
    with pytest.raises(InternalFault, match="twice"):
        pool.check([])


def test_check_finds_a_lost_block() -> None:
    pool = KVPool(3)
    pool._free.pop()
    with pytest.raises(InternalFault, match="must be in one place"):
        pool.check([])


def test_check_finds_content_in_the_wrong_place() -> None:
    pool = KVPool(2)
    block = published(pool, "a")
    pool._by_key[b"b"] = block
    with pytest.raises(InternalFault, match="1 published blocks but 2 keys"):
        pool.check([[block]])
    del pool._by_key[b"a"]
    with pytest.raises(InternalFault, match="a key that is not its own"):
        pool.check([[block]])
    pool.reset()
    pool._contents[0] = (b"a", b"a")
    with pytest.raises(InternalFault, match="wrong list"):
        pool.check([])


def test_repr_is_a_status_line() -> None:
    pool = KVPool(3)
    pool.release([published(pool, "a")])
    pool.allocate()
    assert repr(pool) == "<KVPool blocks=3 owned=1 cached=1>"


def test_roots_differ_by_salt_and_by_where_parts_end() -> None:
    assert root_key("a", "model") != root_key("b", "model")
    assert root_key("ab", "c") != root_key("a", "bc")
    assert root_key("\ud800", "c") != root_key("", "c")


def test_keys_are_chained() -> None:
    root = root_key("", "model")
    tokens = b"\x01\x00\x00\x00" * 16
    assert child_key(root, tokens) != child_key(child_key(root, tokens), tokens)


class PoolMachine(RuleBasedStateMachine):
    """Any order of calls keeps every block in one place; `find` never returns foreign content."""

    @initialize(size=st.integers(1, 12))
    def start(self, size: int) -> None:
        self.pool = KVPool(size)
        self.tables: list[list[int]] = []
        self.content: dict[int, bytes] = {}

    @precondition(lambda self: self.pool.num_free > 0)
    @rule(new_table=st.booleans())
    def allocate(self, new_table: bool) -> None:
        block = self.pool.allocate()
        self.content.pop(block, None)
        if new_table or not self.tables:
            self.tables.append([])
        self.tables[-1].append(block)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), key=st.sampled_from([b"a", b"b", b"c", b"d"]))
    def publish(self, data: st.DataObject, key: bytes) -> None:
        block = data.draw(st.sampled_from(data.draw(st.sampled_from(self.tables))))
        if block not in self.content and key not in self.content.values():
            self.content[block] = key
        self.pool.publish(block, key, key)

    @rule(key=st.sampled_from([b"a", b"b", b"c", b"d"]))
    def share(self, key: bytes) -> None:
        block = self.pool.find(key, key)
        if block is not None:
            assert self.content[block] == key
            self.pool.share(block)
            self.tables.append([block])

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.pool.release(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))))

    @invariant()
    def consistent(self) -> None:
        self.pool.check(self.tables)
        owned = {block for table in self.tables for block in table}
        assert self.pool.num_free == self.pool.num_blocks - len(owned)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


KEYS = (b"a", b"b", b"c", b"d")


@settings(max_examples=2000, deadline=None)
@given(st.binary(min_size=8, max_size=40))
def test_thousands_of_sequences_of_operations_keep_the_books(script: bytes) -> None:
    """Each byte is an operation and what it works on; shorter than the machine above, so more."""
    pool = KVPool(1 + script[0] % 8)
    tables: list[list[int]] = []
    for byte in script[1:]:
        operation, which = byte & 3, byte >> 2
        table = tables[which % len(tables)] if tables else []
        key = KEYS[which & 3]
        if operation == 0 and pool.num_free:
            tables.append([pool.allocate()])
        elif operation == 1 and table:
            pool.publish(table[-1], key, key)
        elif operation == 2 and (found := pool.find(key, key)) is not None:
            pool.share(found)
            tables.append([found])
        elif operation == 3 and tables:
            pool.release(tables.pop(which % len(tables)))
        pool.check(tables)
        assert pool.num_free == pool.num_blocks - len({block for own in tables for block in own})
