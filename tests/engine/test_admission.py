from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.admission import ExpectedLength, Limits, Reservations
from engine.kv import KVPool
from engine.protocol.errors import ContextLengthExceeded
from engine.request import Request
from engine.sequence import Sequence, blocks_for


def request_of(prompt: int, max_tokens: int | None, n: int = 1) -> Request:
    return Request(id="r", prompts=[np.zeros(prompt, np.int32)], n=n, max_tokens=max_tokens)


def sequence_of(prompt: int, max_tokens: int) -> Sequence:
    return Sequence(
        request_of(prompt, max_tokens),
        0,
        arrival_number=1,
        max_tokens=max_tokens,
        expected_tokens=max_tokens,
        seed=0,
        end_ids=frozenset(),
        root=b"",
    )


def test_a_request_that_fits_keeps_its_cap() -> None:
    assert Limits(100, 64).max_tokens(request_of(60, 40)) == [40]


def test_the_context_is_prompt_and_output_together_and_both_numbers_are_named() -> None:
    with pytest.raises(ContextLengthExceeded) as raised:
        Limits(100, 64).max_tokens(request_of(60, 41))
    assert "100 tokens, but 101" in raised.value.message
    assert "max_model_len" in raised.value.message
    assert raised.value.code == "context_length_exceeded"


def test_the_refusal_names_the_field_that_the_prompt_came_in() -> None:
    prompts = [np.zeros(99, np.int32)]
    for name in ("prompt", "messages"):
        request = Request(id="r", prompts=prompts, max_tokens=2, prompt_field=name)
        for limits in (Limits(100, 64), Limits(200, 3)):
            with pytest.raises(ContextLengthExceeded) as raised:
                limits.max_tokens(request)
            assert raised.value.param == name


def test_a_prompt_that_fills_the_context_leaves_no_room_to_answer() -> None:
    with pytest.raises(ContextLengthExceeded):
        Limits(100, 64).max_tokens(request_of(100, None))


def test_b37_what_can_never_fit_the_pool_is_refused() -> None:
    with pytest.raises(ContextLengthExceeded) as raised:
        Limits(8192, 128).max_tokens(request_of(3000, 8))
    assert "2048 tokens, but 3008" in raised.value.message
    assert "kv_cache_mb" in raised.value.message


def test_the_pool_holds_all_choices_but_the_prompt_only_once() -> None:
    limits = Limits(4096, 10)
    assert limits.max_tokens(request_of(65, 47, n=2)) == [47]
    with pytest.raises(ContextLengthExceeded, match="2 x 64"):
        limits.max_tokens(request_of(65, 64, n=2))


def test_without_a_cap_context_and_pool_decide() -> None:
    assert Limits(100, 64).max_tokens(request_of(60, None)) == [40]
    assert Limits(4096, 10).max_tokens(request_of(65, None)) == [95]
    assert Limits(4096, 10).max_tokens(request_of(65, None, n=2)) == [47]


def test_a_cap_that_nobody_asked_for_gives_way_to_the_prompt() -> None:
    def clamped(prompt: int) -> Request:
        return replace(request_of(prompt, 50), clamp=True)

    assert Limits(100, 64).max_tokens(clamped(20)) == [50]
    assert Limits(100, 64).max_tokens(clamped(90)) == [10]
    with pytest.raises(ContextLengthExceeded):
        Limits(100, 64).max_tokens(clamped(100))


def test_each_prompt_has_its_own_cap() -> None:
    request = Request(id="r", prompts=[np.zeros(size, np.int32) for size in (10, 60)])
    assert Limits(100, 64).max_tokens(request) == [90, 40]


@settings(deadline=None)
@given(
    prompt=st.integers(1, 300),
    max_tokens=st.none() | st.integers(1, 300),
    n=st.integers(1, 5),
    max_model_len=st.integers(1, 400),
    num_blocks=st.integers(1, 40),
)
def test_what_is_let_in_fits_even_alone(
    prompt: int, max_tokens: int | None, n: int, max_model_len: int, num_blocks: int
) -> None:
    try:
        [cap] = Limits(max_model_len, num_blocks).max_tokens(request_of(prompt, max_tokens, n))
    except ContextLengthExceeded:
        return
    assert cap >= 1
    assert cap == max_tokens or max_tokens is None
    assert prompt + cap <= max_model_len
    assert blocks_for(prompt + cap) <= num_blocks
    assert prompt + n * cap <= num_blocks * 16


def test_a_cached_block_costs_nothing_only_while_somebody_else_holds_it() -> None:
    pool = KVPool(10)
    held, idle = pool.allocate(), pool.allocate()
    pool.publish(idle, b"key", b"tokens")
    pool.release([idle])
    sequence = sequence_of(prompt=100, max_tokens=28)  # 8 blocks, and one stays free
    assert Reservations(pool).fits(sequence, [idle], [])
    taken = pool.allocate()
    assert Reservations(pool).fits(sequence, [held], [])
    assert not Reservations(pool).fits(sequence, [idle], [])
    pool.release([taken])
    assert Reservations(pool).fits(sequence, [idle], [])


def test_what_others_are_expected_to_need_is_kept_for_them() -> None:
    pool = KVPool(20)
    sequence, other = sequence_of(100, 28), sequence_of(100, 60)
    assert Reservations(pool).fits(sequence, [], [other])
    pool.allocate()
    pool.allocate()
    assert not Reservations(pool).fits(sequence, [], [other])


def test_the_expected_length_follows_what_is_seen() -> None:
    expected = ExpectedLength()
    before = expected.tokens
    for _ in range(200):
        expected.observe(10)
    assert before > expected.tokens >= 10
    for _ in range(1000):
        expected.observe(0)
    assert expected.tokens == 1
