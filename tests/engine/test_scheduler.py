from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.protocol.errors import ContextLengthExceeded, InternalFault
from engine.protocol.sampling import Sampling
from engine.runner.base import BLOCK_TOKENS
from engine.scheduler import share_out
from engine.sequence import Phase, Sequence
from engine.step_time import reads_of
from tests.fakes.sequences import Bench, running

PROMPT = list(range(200))


def finish(bench: Bench, *sequences: Sequence) -> None:
    """Run to the end and prove that everybody said what he says alone, and nothing leaked."""
    bench.run()
    for sequence in sequences:
        assert sequence.output.tolist() == bench.alone(sequence)
    assert bench.pool.num_free == bench.pool.num_blocks
    bench.scheduler.check()


# batching ----------------------------------------------------------------------------------------


def test_a_prompt_is_cut_into_chunks_of_the_budget() -> None:
    bench = Bench(max_num_batched_tokens=64)
    [sequence] = bench.submit(PROMPT[:150], 2)
    assert [bench.step().rows for _ in range(4)] == [64, 64, 22, 1]
    finish(bench, sequence)


def test_decodes_go_first_and_prefill_takes_the_rest() -> None:
    bench = Bench(max_num_batched_tokens=20)
    [first] = bench.submit(PROMPT[:10], 8)
    bench.step()
    [second] = bench.submit(PROMPT[50:150], 8)
    step = bench.step()
    assert step.segments == {first: 1, second: 19}
    assert list(step.segments) == [first, second]
    finish(bench, first, second)


def test_a_prompt_of_16k_tokens_costs_running_streams_one_budget_a_step() -> None:
    """R23: each stream gets its token in every step, and no step is larger than the budget."""
    bench = Bench(num_blocks=1200, max_num_batched_tokens=64)
    bench.limits = type(bench.limits)(20_000, 1200)
    streams = [bench.submit([index], 400)[0] for index in range(4)]
    bench.step()
    [long] = bench.submit([index % 250 for index in range(16_384)], 2)
    while not long.output_tokens:
        step = bench.step()
        assert step.rows <= 64
        assert all(step.segments[stream] == 1 for stream in streams)
    finish(bench, long, *streams)


def test_the_oldest_decode_when_the_budget_does_not_hold_all() -> None:
    bench = Bench(max_num_batched_tokens=2)
    sequences = [bench.submit([index], 4)[0] for index in range(4)]
    bench.step()
    bench.step()
    assert set(bench.step().segments) == set(sequences[:2])
    finish(bench, *sequences)


def test_no_more_run_at_once_than_allowed() -> None:
    bench = Bench(max_num_seqs=2)
    sequences = [bench.submit([index], 3)[0] for index in range(5)]
    bench.step()
    assert (len(bench.scheduler.running), bench.scheduler.num_waiting) == (2, 3)
    finish(bench, *sequences)


def test_a_short_prompt_does_not_wait_behind_a_long_one() -> None:
    bench = Bench(num_blocks=256, max_num_batched_tokens=64)
    [long] = bench.submit(list(range(256)) * 8, 4)
    bench.step()
    [short] = bench.submit([7, 7, 7], 4)
    step = bench.step()
    assert step.segments[short] == 3
    assert step.segments[long] == 61
    finish(bench, long, short)


def test_a_long_prompt_moves_on_under_a_stream_of_short_ones() -> None:
    bench = Bench(num_blocks=256, max_num_batched_tokens=64)
    [long] = bench.submit(list(range(256)) * 2, 1)
    bench.step()
    for index in range(40):
        bench.submit([index] * 60, 1)
    steps = 1
    while not long.output_tokens:
        bench.step()
        steps += 1
    assert steps <= 512 // 16
    bench.run()


def test_one_long_prefill_at_a_time_and_others_pass_it() -> None:
    bench = Bench(num_blocks=256, max_num_batched_tokens=32)
    [first] = bench.submit([1] * 400, 2)
    [second] = bench.submit([2] * 400, 2)
    [short] = bench.submit([3] * 8, 2)
    bench.step()
    assert running(first)
    assert not running(second)
    assert running(short)
    finish(bench, first, second, short)


def test_r23_a_huge_prompt_costs_running_streams_no_more_than_a_chunk() -> None:
    bench = Bench(num_blocks=1200, max_num_batched_tokens=256, target_itl_s=0.1)
    streams = [bench.submit([index], 100)[0] for index in range(4)]
    bench.step()
    bench.limits = type(bench.limits)(20_000, 1200)
    [huge] = bench.submit([9] * 16_000, 1)
    longest_s = 0.0
    while not huge.output_tokens:
        said = [stream.output_tokens for stream in streams]
        step = bench.step()
        assert step.rows <= 256
        assert all(
            stream.output_tokens == before + 1
            for stream, before in zip(streams, said, strict=True)
            if stream.phase is Phase.RUNNING
        )
        seconds = 0.01 + 0.001 * step.rows + 1e-7 * step.reads
        if bench.step_time.num_observed > 20 and any(map(running, streams)):
            longest_s = max(longest_s, seconds)
        bench.step_time.observe(step.rows, step.reads, seconds)
    assert 0.05 < longest_s < 0.105


def test_prefill_may_stretch_decodes_that_are_slow_by_themselves() -> None:
    bench = Bench(max_num_batched_tokens=256, target_itl_s=0.1)
    for _ in range(30):
        for rows in (1, 50, 100):
            bench.step_time.observe(rows, reads_of(0, rows), 1.0 + 0.02 * rows)
    [stream] = bench.submit([1], 50)
    bench.step()
    [prompt] = bench.submit(PROMPT, 2)
    step = bench.step()
    assert step.segments[stream] == 1
    assert 40 <= step.segments[prompt] <= 60
    finish(bench, stream, prompt)


@settings(deadline=None)
@given(st.lists(st.integers(1, 600), max_size=8), st.integers(0, 512))
def test_sharing_out_spends_the_budget_and_forgets_nobody_old(
    wanted: list[int], budget: int
) -> None:
    given_out = share_out(wanted, budget)
    assert all(0 <= got <= want for got, want in zip(given_out, wanted, strict=True))
    assert sum(given_out) == min(budget, sum(wanted))
    if wanted and budget:
        assert given_out[0] >= min(wanted[0], max(1, budget // 4))


# prefix cache ------------------------------------------------------------------------------------


def test_a_second_request_finds_the_blocks_of_the_first() -> None:
    bench = Bench()
    [first] = bench.submit(PROMPT[:100], 4)
    bench.run()
    [second] = bench.submit(PROMPT[:90], 4)
    assert bench.step().segments[second] == 90 - 80
    assert second.cached_tokens == 80
    finish(bench, first, second)


def test_a_fully_cached_prompt_still_computes_its_last_token() -> None:
    bench = Bench()
    bench.submit(PROMPT[:65], 4)
    bench.run()
    [aligned] = bench.submit(PROMPT[:64], 4)
    [last] = bench.submit(PROMPT[:65], 4)
    step = bench.step()
    assert (step.segments[aligned], step.segments[last]) == (16, 1)
    finish(bench, aligned, last)


def test_an_answer_is_found_as_part_of_the_next_turn() -> None:
    bench = Bench()
    [first] = bench.submit(PROMPT[:30], 40)
    bench.run()
    turn = [*PROMPT[:30], *first.output.tolist(), 1, 2, 3]
    [second] = bench.submit(turn, 4)
    bench.step()
    assert second.cached_tokens == 64
    finish(bench, second)


def test_another_salt_never_hits() -> None:
    bench = Bench()
    bench.submit(PROMPT[:100], 4, salt="one")
    bench.run()
    [other] = bench.submit(PROMPT[:100], 4, salt="two")
    bench.step()
    assert other.cached_tokens == 0
    finish(bench, other)


def test_a_block_is_not_found_before_the_step_that_fills_it_ends() -> None:
    bench = Bench(max_num_batched_tokens=32)
    [leader] = bench.submit(PROMPT[:64], 2)
    [follower] = bench.submit(PROMPT[:64], 2)
    assert bench.step().segments == {leader: 32}
    assert follower.phase is Phase.PARKED
    finish(bench, leader, follower)
    assert follower.cached_tokens == 48


def test_followers_wait_only_for_what_they_share() -> None:
    bench = Bench(num_blocks=256, max_num_batched_tokens=64)
    [leader] = bench.submit(PROMPT, 2)
    [follower] = bench.submit([*PROMPT[:32], *([5] * 20)], 2)
    bench.step()
    assert follower.phase is Phase.QUEUED
    bench.step()
    assert follower.cached_tokens == 32
    finish(bench, leader, follower)


def test_when_the_leader_dies_a_follower_takes_over() -> None:
    bench = Bench(max_num_batched_tokens=32)
    [leader] = bench.submit(PROMPT[:128], 2)
    followers = [bench.submit(PROMPT[:128], 2)[0] for _ in range(3)]
    bench.step()
    bench.end(leader)
    bench.step()
    assert [running(follower) for follower in followers] == [True, False, False]
    assert followers[0].cached_tokens == 32
    finish(bench, *followers)
    assert bench.scheduler.recomputed_tokens == 0


def test_a_paused_leader_lets_its_followers_go() -> None:
    bench = Bench(max_num_batched_tokens=32)
    [leader] = bench.submit(PROMPT[:128], 2)
    [follower] = bench.submit(PROMPT[:128], 2)
    bench.step()
    bench.scheduler.pause(leader)
    finish(bench, follower)
    bench.scheduler.resume(leader)
    finish(bench, leader)


def test_choices_share_the_prompt_and_compute_it_once() -> None:
    bench = Bench(max_num_batched_tokens=256)
    choices = bench.submit(PROMPT[:100], 4, n=4, sampling=Sampling(seed=0))
    bench.step()
    assert bench.step().rows == 1 + 3 * 4
    finish(bench, *choices)
    assert len({tuple(choice.output.tolist()) for choice in choices}) == 4


# memory ------------------------------------------------------------------------------------------


def test_a_sequence_starts_only_when_its_expected_length_fits() -> None:
    bench = Bench(num_blocks=20)
    [first] = bench.submit([1] * 20, 200)
    [second] = bench.submit([2] * 20, 100)
    bench.step()
    assert running(first)
    assert not running(second)
    finish(bench, first, second)
    assert bench.scheduler.num_preemptions == 0


def test_an_expectation_below_the_cap_lets_more_run() -> None:
    bench = Bench(num_blocks=20)
    [first] = bench.submit([1] * 20, 200, expected_tokens=30)
    [second] = bench.submit([2] * 20, 200, expected_tokens=30)
    bench.step()
    assert running(first)
    assert running(second)
    finish(bench, first, second)
    assert bench.scheduler.num_preemptions > 0


def test_the_oldest_is_never_preempted() -> None:
    bench = Bench(num_blocks=16, max_num_seqs=8)
    sequences = [bench.submit([index] * 10, 200, expected_tokens=1)[0] for index in range(6)]
    while sequences[0].phase is not Phase.ENDED:
        bench.step()
        assert sequences[0].recomputed_tokens == 0
    finish(bench, *sequences)
    assert bench.scheduler.num_preemptions > 0
    assert bench.scheduler.recomputed_tokens == sum(s.recomputed_tokens for s in sequences) > 0


def test_the_oldest_is_spared_even_where_it_would_cost_least() -> None:
    bench = Bench(num_blocks=16, max_num_batched_tokens=256)
    [oldest] = bench.submit([1], 100, expected_tokens=1)
    [young] = bench.submit([2] * 90, 60, expected_tokens=1)
    [youngest] = bench.submit([3] * 60, 60, expected_tokens=1)
    while not bench.scheduler.num_preemptions:
        assert bench.step()
    assert running(oldest)
    finish(bench, oldest, young, youngest)
    assert oldest.recomputed_tokens == 0


def test_a_victim_that_was_scheduled_already_leaves_the_step() -> None:
    bench = Bench(max_num_batched_tokens=256)
    [oldest] = bench.submit([1] * 50, 30)
    [victim] = bench.submit([2] * 35, 30)
    [needy] = bench.submit([3] * 96, 30)
    bench.step()
    stolen = [bench.pool.allocate() for _ in range(bench.pool.num_free)]
    step = bench.schedule()
    assert step.segments == {oldest: 1, needy: 1}
    assert (step.rows, step.num_preempted, victim.phase) == (2, 1, Phase.RETURNING)
    bench.commit(step)
    bench.pool.release(stolen)
    finish(bench, oldest, victim, needy)


def test_who_needs_a_block_and_would_cost_least_gives_way_itself() -> None:
    bench = Bench(max_num_batched_tokens=256)
    [oldest] = bench.submit([1] * 50, 30)
    [older] = bench.submit([2] * 100, 30)
    [needy] = bench.submit([3] * 32, 30)
    bench.step()
    stolen = [bench.pool.allocate() for _ in range(bench.pool.num_free)]
    assert bench.step().segments == {oldest: 1, older: 1}
    assert needy.phase is Phase.RETURNING
    bench.pool.release(stolen)
    finish(bench, oldest, older, needy)


def test_the_oldest_prefill_takes_the_blocks_it_needs() -> None:
    bench = Bench(max_num_batched_tokens=48)
    [oldest] = bench.submit([1] * 200, 30)
    [victim] = bench.submit([2] * 30, 30)
    bench.step()
    stolen = [bench.pool.allocate() for _ in range(bench.pool.num_free - 1)]
    assert bench.step().segments == {oldest: 47}
    assert victim.phase is Phase.RETURNING
    bench.pool.release(stolen)
    finish(bench, oldest, victim)


def test_check_finds_what_does_not_belong() -> None:
    bench = Bench(max_num_batched_tokens=32)
    [leader] = bench.submit(PROMPT, 4)
    [follower] = bench.submit(PROMPT, 4)
    bench.step()
    leader.phase = Phase.PAUSED
    with pytest.raises(InternalFault, match="must not be among the running"):
        bench.scheduler.check()
    leader.phase = Phase.RUNNING
    bench.scheduler.check()
    bench.scheduler._leaders._leads.clear()
    with pytest.raises(InternalFault, match="nobody computes"):
        bench.scheduler.check()
    bench = Bench()
    bench.scheduler._leaders.lead(follower)
    with pytest.raises(InternalFault, match="nothing runs"):
        bench.scheduler.check()


def test_a_younger_prefill_waits_for_blocks_rather_than_take_them() -> None:
    bench = Bench(max_num_batched_tokens=64)
    [oldest] = bench.submit([1] * 20, 40)
    [young] = bench.submit([2] * 200, 1)
    bench.step()
    stolen = [bench.pool.allocate() for _ in range(bench.pool.num_free - 1)]
    assert young.num_computed == 44
    assert bench.step().segments == {oldest: 1, young: 20}
    assert bench.step().segments == {oldest: 1}
    assert bench.scheduler.num_preemptions == 0
    bench.pool.release(stolen)
    finish(bench, oldest, young)


def test_two_prompts_whose_keys_collide_do_not_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.sequence.child_key", lambda parent, tokens: b"all the same")
    bench = Bench()
    sequences = [bench.submit([index] * 40, 8)[0] for index in range(3)]
    bench.step()
    finish(bench, *sequences)


def test_the_victim_is_the_one_with_the_fewest_tokens_of_its_own() -> None:
    bench = Bench(num_blocks=24, max_num_batched_tokens=256)
    [oldest] = bench.submit([1] * 95, 100, expected_tokens=1)
    [short] = bench.submit([2] * 30, 60, expected_tokens=1)
    [long] = bench.submit([3] * 100, 60, expected_tokens=1)
    while not bench.scheduler.num_preemptions:
        assert bench.step()
    assert short.phase is Phase.RETURNING
    assert running(long)
    finish(bench, oldest, short, long)


def test_a_preempted_sequence_goes_ahead_of_the_queue() -> None:
    bench = Bench(num_blocks=16, max_num_batched_tokens=256)
    [oldest] = bench.submit([1] * 95, 100, expected_tokens=1)
    [victim] = bench.submit([2] * 90, 60, expected_tokens=1)
    while not bench.scheduler.num_preemptions:
        assert bench.step()
    [late] = bench.submit([3] * 4, 4)
    while not running(victim):
        bench.step()
        assert not running(late) or running(victim)
    finish(bench, oldest, victim, late)


def test_no_sequence_is_let_in_by_a_step_that_preempted() -> None:
    bench = Bench(num_blocks=12, max_num_batched_tokens=256)
    bench.submit([1] * 60, 100, expected_tokens=1)
    bench.submit([2] * 60, 60, expected_tokens=1)
    while True:
        bench.submit([3], 1)
        step = bench.step()
        assert step
        if step.num_preempted:
            assert not step.started
            break
    bench.run()


def test_one_sequence_alone_may_fill_the_pool() -> None:
    bench = Bench(num_blocks=4)
    [sequence] = bench.submit([1] * 40, 24)
    finish(bench, sequence)


def test_what_cannot_fit_alone_is_a_bug_of_admission() -> None:
    bench = Bench(num_blocks=4)
    bench.limits = type(bench.limits)(4096, 100)
    bench.submit([1] * 40, 100)
    with pytest.raises(InternalFault, match="alone does not fit"):
        bench.run()


@pytest.mark.parametrize("n", [3, 5, 10])
def test_choices_survive_forced_preemption(n: int) -> None:
    """R25."""
    bench = Bench(num_blocks=5 + 4 * n, max_num_seqs=16, max_num_batched_tokens=64)
    sampling = Sampling(seed=0)
    first = bench.submit(PROMPT[:90], 40, n=n, sampling=sampling, expected_tokens=1)
    second = bench.submit(PROMPT[100:190], 40, n=n, sampling=sampling, expected_tokens=1)
    finish(bench, *first, *second)
    assert bench.scheduler.num_preemptions > 0


# pause, cancel, failure --------------------------------------------------------------------------


def test_a_paused_sequence_is_in_no_step_and_holds_nothing() -> None:
    bench = Bench()
    [paused] = bench.submit(PROMPT[:40], 10)
    [other] = bench.submit([5], 10)
    bench.step()
    bench.step()
    bench.scheduler.pause(paused)
    bench.scheduler.pause(paused)
    finish(bench, other)
    assert (paused.phase, paused.num_blocks) == (Phase.PAUSED, 0)
    bench.scheduler.resume(paused)
    finish(bench, paused)
    assert paused.recomputed_tokens == 41 - 32
    bench.scheduler.resume(paused)
    assert paused.phase is Phase.ENDED


def test_sequences_can_be_removed_from_anywhere() -> None:
    bench = Bench(max_num_seqs=2, max_num_batched_tokens=32)
    [runs] = bench.submit(PROMPT, 4)
    [parked] = bench.submit(PROMPT, 4)
    [paused] = bench.submit([1], 4)
    [queued] = bench.submit([2], 4)
    bench.scheduler.pause(paused)
    bench.step()
    assert parked.phase is Phase.PARKED
    for sequence in (runs, parked, paused, queued):
        bench.end(sequence)
        bench.scheduler.check()
    assert not bench.step()
    assert bench.scheduler.num_waiting == 0
    finish(bench)


def test_followers_can_leave_while_their_leader_runs() -> None:
    bench = Bench(max_num_batched_tokens=32)
    [leader] = bench.submit(PROMPT, 4)
    [paused] = bench.submit(PROMPT, 4)
    [cancelled] = bench.submit(PROMPT, 4)
    bench.step()
    assert paused.phase is cancelled.phase is Phase.PARKED
    bench.scheduler.pause(paused)
    bench.end(cancelled)
    bench.scheduler.check()
    bench.run()
    bench.scheduler.resume(paused)
    finish(bench, leader, paused)
    assert paused.cached_tokens == 192


def test_eviction_makes_everything_start_over_with_the_same_result() -> None:
    bench = Bench(max_num_batched_tokens=32)
    sequences = [bench.submit(PROMPT[index : index + 50], 6)[0] for index in (0, 0, 40)]
    for _ in range(4):
        bench.step()
    bench.scheduler.evict()
    assert bench.pool.num_cached == 0
    bench.scheduler.check()
    finish(bench, *sequences)


class SchedulerMachine(RuleBasedStateMachine):
    """Whatever happens in whatever order: invariants hold, and all say what they say alone."""

    @initialize(
        num_blocks=st.integers(6, 16),
        max_num_seqs=st.integers(2, 6),
        budget=st.sampled_from([7, 16, 64]),
    )
    def start(self, num_blocks: int, max_num_seqs: int, budget: int) -> None:
        self.max_num_seqs, self.budget = max_num_seqs, budget
        self.bench = Bench(
            num_blocks=num_blocks, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget
        )
        self.everyone: list[Sequence] = []

    @rule(
        shared=st.sampled_from([0, 0, 16, 33, 70]),
        own=st.integers(1, 30),
        text=st.integers(0, 2),
        max_tokens=st.integers(1, 80),
        expected=st.sampled_from([1, 1, 40]),
        n=st.integers(1, 3),
        salt=st.sampled_from(["", "salt"]),
        tenant=st.sampled_from(["a", "b"]),
        priority=st.integers(0, 1),
    )
    def submit(
        self,
        shared: int,
        own: int,
        text: int,
        max_tokens: int,
        expected: int,
        n: int,
        salt: str,
        tenant: str,
        priority: int,
    ) -> None:
        prompt = [*range(shared), *([text] * own)]
        try:
            self.everyone += self.bench.submit(
                prompt,
                max_tokens,
                n=n,
                salt=salt,
                tenant=tenant,
                priority=priority,
                expected_tokens=expected,
                sampling=Sampling(seed=0),
            )
        except ContextLengthExceeded:
            needed = len(prompt) + n * (max_tokens + 2 * BLOCK_TOKENS)
            assert needed > self.bench.pool.num_blocks * BLOCK_TOKENS

    @rule(count=st.integers(1, 40))
    def step(self, count: int) -> None:
        for _ in range(count):
            runnable = self.bench.scheduler.running or self.bench.scheduler.num_waiting
            oldest = self.bench.scheduler.running[:1]
            step = self.bench.schedule()
            assert bool(step) == bool(runnable)
            assert step.rows <= self.budget
            assert all(running(sequence) for sequence in (*step.segments, *oldest))
            self.bench.commit(step)

    @precondition(lambda self: self.bench.alive)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.bench.alive))
        self.bench.end(sequence)
        self.everyone.remove(sequence)

    @precondition(lambda self: self.bench.alive)
    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        self.bench.scheduler.pause(data.draw(st.sampled_from(self.bench.alive)))

    @precondition(lambda self: self.bench.alive)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        self.bench.scheduler.resume(data.draw(st.sampled_from(self.bench.alive)))

    @rule()
    def fail(self) -> None:
        step = self.bench.scheduler.schedule()
        for sequence in list(step.segments):
            self.bench.end(sequence)
            self.everyone.remove(sequence)
        self.bench.scheduler.evict()

    @invariant()
    def consistent(self) -> None:
        self.bench.scheduler.check()
        assert len(self.bench.scheduler.running) <= self.max_num_seqs

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        for sequence in list(self.bench.alive):
            self.bench.scheduler.resume(sequence)
        finish(self.bench, *self.everyone)
        assert not self.bench.alive


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


@settings(max_examples=1000, deadline=None)
@given(st.binary(min_size=6, max_size=24))
def test_thousands_of_sequences_of_operations_keep_the_books(script: bytes) -> None:
    """Each byte is an operation and what it works on; shorter than the machine above, so more."""
    bench = Bench(num_blocks=6 + script[0] % 8, max_num_seqs=4, max_num_batched_tokens=24)
    for byte in script[1:]:
        operation, which = byte % 5, byte // 5
        sequence = bench.alive[which % len(bench.alive)] if bench.alive else None
        if operation == 0:
            prompt = [*range(16 * (which % 3)), which]
            with contextlib.suppress(ContextLengthExceeded):
                bench.submit(prompt, 1 + which, n=1 + which % 2, expected_tokens=1)
        elif operation == 1 or sequence is None:
            for _ in range(1 + which % 8):
                bench.step()
        elif operation == 2:
            bench.end(sequence)
        elif operation == 3:
            bench.scheduler.pause(sequence)
        else:
            bench.scheduler.resume(sequence)
        bench.scheduler.check()
    for sequence in list(bench.alive):
        bench.end(sequence)
    bench.scheduler.check()
    assert bench.pool.num_free == bench.pool.num_blocks
