"""Which sequence computes how many tokens in the next step. Integers and lists, no tensors.

A step is `{sequence: n_tokens}` under a token budget:

1. every running sequence with one uncomputed token decodes;
2. guesses at what follows ride along where they pay, in rows and blocks that are to spare;
3. sequences are let in while there is room: preempted ones first, then the fair queue;
4. what is left of the budget goes to prefill chunks, short ones first, with a share kept for
   the oldest, so that neither waits for the other.

Whoever needs a block when none is free takes it from a victim, which later computes its tokens
again. The oldest running sequence is never a victim, so something always finishes.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from itertools import chain

from engine.admission import Reservations
from engine.kv import KVPool
from engine.leaders import Leaders
from engine.protocol.errors import InternalFault
from engine.queue import FairQueue
from engine.runner.base import BLOCK_TOKENS
from engine.sequence import Phase, Sequence, blocks_for
from engine.speculate.speculator import Speculator
from engine.step import Step
from engine.step_time import StepTimeModel

MAX_PREFILLS = 4
"""Prefills in progress at once beyond what one step can finish."""
MAX_LONG_PREFILLS = 1
"""Of those, prompts that no single step could hold."""
_OLDEST_SHARE = 4
"""The oldest prefill gets at least a quarter of the chunk budget."""
_STRETCH = 2.0
"""Where decodes alone exceed the target latency, prefill may stretch them by this much."""


class Scheduler:
    """Owns every live sequence and its blocks. Called from one thread.

    max_num_seqs, max_num_batched_tokens: as in `EngineSettings`
    target_itl_s: seconds that a step with decodes in it should not exceed
    """

    def __init__(
        self,
        pool: KVPool,
        step_time: StepTimeModel,
        speculator: Speculator,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        target_itl_s: float,
    ) -> None:
        self.pool = pool
        self.queue = FairQueue()
        self.running: list[Sequence] = []
        self._step_time, self._speculator = step_time, speculator
        self._reservations = Reservations(pool)
        self._leaders = Leaders()
        self._returning: list[Sequence] = []
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._target_itl_s = target_itl_s
        self.num_preemptions = self.recomputed_tokens = 0
        self.prefix_query_tokens = self.prefix_hit_tokens = 0

    @property
    def num_waiting(self) -> int:
        """Sequences that could run and do not; paused ones are not among them."""
        return len(self.queue) + len(self._returning) + self._leaders.num_parked

    # membership ------------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for its turn."""
        if sequence.started:
            sequence.phase = Phase.RETURNING
            insort(self._returning, sequence, key=_age)
        else:
            sequence.phase = Phase.QUEUED
            self.queue.add(sequence)

    def remove(self, sequence: Sequence, phase: Phase = Phase.ENDED) -> None:
        """Take a sequence out, wherever it is; its blocks are free at once.

        Never called while a step that names the sequence runs.
        """
        if sequence.phase is Phase.RUNNING:
            self._stop(sequence)
        elif sequence.phase is Phase.QUEUED:
            self.queue.remove(sequence)
        elif sequence.phase is Phase.RETURNING:
            self._returning.remove(sequence)
        elif sequence.phase is Phase.PARKED:
            self._leaders.unpark(sequence)
        sequence.phase = phase
        if phase is Phase.ENDED:
            self._speculator.ended(sequence)

    def pause(self, sequence: Sequence) -> None:
        """Produce nothing more for now. The blocks stay in the cache until others need them."""
        if sequence.phase not in (Phase.PAUSED, Phase.ENDED):
            self.remove(sequence, Phase.PAUSED)

    def resume(self, sequence: Sequence) -> None:
        if sequence.phase is Phase.PAUSED:
            self.add(sequence)

    def evict(self) -> None:
        """Preempt everything and forget the cache: what the KV memory holds is not trusted."""
        for sequence in list(self.running):
            self._stop(sequence)
            self.add(sequence)
        self.pool.reset()

    def _stop(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._wake(self._leaders.stop(sequence))
        self.pool.release(sequence.take_blocks())

    def _wake(self, followers: list[Sequence]) -> None:
        for follower in followers:
            self.add(follower)

    # schedule --------------------------------------------------------------------------------

    def schedule(self) -> Step:
        """Decide the next step. Blocks for its writes are owned when this returns."""
        step = Step(self._max_num_batched_tokens)
        self._schedule_decodes(step)
        self._schedule_guesses(step)
        budget = self._prefill_budget(step)
        if not step.num_preempted:
            self._admit(step, budget)
        self._schedule_prefills(step, budget)
        return step

    def _schedule_decodes(self, step: Step) -> None:
        for sequence in list(self.running):
            if step.budget == 0:
                return
            running = sequence.phase is Phase.RUNNING
            if running and sequence.uncomputed == 1 and self._make_room(sequence, step):
                step.add(sequence, 1)

    def _make_room(self, sequence: Sequence, step: Step) -> bool:
        """Own the block of the next token; False if the sequence had to give way itself."""
        if blocks_for(sequence.num_tokens) <= sequence.num_blocks:
            return True  # a block taken for guesses is there already
        while self.pool.num_free == 0:
            victim = self._victim()
            self._preempt(victim, step)
            if victim is sequence:
                return False
        sequence.add_blocks([self.pool.allocate()])
        return True

    def _schedule_guesses(self, step: Step) -> None:
        """Behind decodes, which are all that the step holds so far."""
        if step.num_preempted:
            return
        left = self._rows_on_time(step)
        spare = self.pool.num_free - sum(map(_next_blocks, self.running))
        balance = self._speculator.balance(step.rows, step.reads)
        for sequence in list(step.segments):
            own = sequence.num_blocks + max(0, spare)
            room = min(left, own * BLOCK_TOKENS - sequence.num_tokens)
            if count := self._speculator.draft(sequence, balance, room):
                missing = max(0, blocks_for(sequence.num_tokens + count) - sequence.num_blocks)
                sequence.add_blocks([self.pool.allocate() for _ in range(missing)])
                spare, left = spare - missing, left - count
                step.add(sequence, count)

    def _rows_on_time(self, step: Step) -> int:
        """Rows of guesses that keep a step within the target for those who do not guess."""
        if len(step.segments) < 2:
            return step.budget
        context = max(sequence.num_computed for sequence in step.segments)
        fitting = self._step_time.rows_within(self._target_itl_s, step.rows, step.reads, context)
        return int(min(step.budget, fitting))

    def _victim(self) -> Sequence:
        """The one whose loss costs least: fewest tokens that nobody else keeps in the cache.

        Never the oldest. Among equals the youngest.
        """
        if len(self.running) < 2:
            raise InternalFault(
                f"One sequence alone does not fit the KV pool: {self.running} in {self.pool}. "
                f"Admission should have refused it."
            )
        return min(self.running[1:], key=lambda one: (self._uncached_tokens(one), _negative(one)))

    def _uncached_tokens(self, sequence: Sequence) -> int:
        shared = 0
        for block in sequence.table.tolist():
            if self.pool.refs(block) < 2:
                break
            shared += 1
        return sequence.num_computed - shared * BLOCK_TOKENS

    def _preempt(self, sequence: Sequence, step: Step) -> None:
        step.drop(sequence)
        step.num_preempted += 1
        self.num_preemptions += 1
        self._stop(sequence)
        self.add(sequence)

    def _prefill_budget(self, step: Step) -> int:
        """Tokens of this step that may be prefill, so that the decodes in it stay on time."""
        if not step or step.budget == 0:
            return step.budget
        rows, reads = step.rows, step.reads
        limit_s = max(self._target_itl_s, _STRETCH * self._step_time.predict_s(rows, reads))
        context = max((one.num_computed for one in self._prefills()), default=0)
        fitting = self._step_time.rows_within(limit_s, rows, reads, context)
        # Never less than a block: a prefill must not stand still.
        return int(min(step.budget, max(BLOCK_TOKENS, fitting)))

    def _prefills(self) -> Iterator[Sequence]:
        return (sequence for sequence in self.running if sequence.uncomputed > 1)

    # admission -------------------------------------------------------------------------------

    def _admit(self, step: Step, budget: int) -> None:
        prefills = [sequence.uncomputed for sequence in self._prefills()]
        for sequence in chain(list(self._returning), self.queue.candidates()):
            if len(self.running) >= self._max_num_seqs or budget <= 0:
                return
            if sum(prefills) >= budget and len(prefills) >= MAX_PREFILLS:
                return
            cached = self._cached_blocks(sequence)
            if self._park(sequence, len(cached)):
                continue
            left = sequence.num_tokens - len(cached) * BLOCK_TOKENS
            if self._is_long(left) and sum(map(self._is_long, prefills)) >= MAX_LONG_PREFILLS:
                continue
            if self.running and not self._reservations.fits(sequence, cached, self.running):
                return
            self._start(sequence, cached, step)
            prefills.append(left)

    def _is_long(self, tokens: int) -> bool:
        return tokens > self._max_num_batched_tokens

    def _cached_blocks(self, sequence: Sequence) -> list[int]:
        """Cached blocks of the sequence's tokens, all but the last token, which is computed."""
        blocks: list[int] = []
        for index in range((sequence.num_tokens - 1) // BLOCK_TOKENS):
            block = self.pool.find(sequence.key(index), sequence.block_bytes(index))
            if block is None:
                break
            blocks.append(block)
        return blocks

    def _park(self, sequence: Sequence, cached: int) -> bool:
        key = self._leaders.follow(sequence, cached, (sequence.num_tokens - 1) // BLOCK_TOKENS)
        if key is None:
            return False
        self.remove(sequence, Phase.PARKED)
        self._leaders.park(sequence, key)
        return True

    def _start(self, sequence: Sequence, cached: list[int], step: Step) -> None:
        if sequence.phase is Phase.QUEUED:
            self.queue.serve(sequence)
        else:
            self._returning.remove(sequence)
        for block in cached:
            self.pool.share(block)
        sequence.add_blocks(cached)
        sequence.num_published = len(cached)
        sequence.num_computed = len(cached) * BLOCK_TOKENS
        sequence.phase = Phase.RUNNING
        insort(self.running, sequence, key=_age)
        self._leaders.lead(sequence)
        if not sequence.started:
            sequence.started = True
            sequence.cached_tokens = sequence.num_computed
            self.prefix_query_tokens += sequence.prompt_tokens
            self.prefix_hit_tokens += sequence.num_computed
            step.started.append(sequence)

    # prefill ---------------------------------------------------------------------------------

    def _schedule_prefills(self, step: Step, budget: int) -> None:
        # Whatever runs and is not in the step yet; that includes a fully cached prompt just let
        # in, which has only its last token to compute.
        prefills = [sequence for sequence in self.running if sequence not in step.segments]
        chunks = share_out([sequence.uncomputed for sequence in prefills], budget)
        for sequence, chunk in zip(prefills, chunks, strict=True):
            self._schedule_chunk(sequence, chunk, step)

    def _schedule_chunk(self, sequence: Sequence, chunk: int, step: Step) -> None:
        end = sequence.num_computed + chunk
        if sequence is self.running[0]:
            while blocks_for(end) - sequence.num_blocks > self.pool.num_free:
                self._preempt(self._victim(), step)
        # A younger prefill takes only what is free: it waits rather than undo others' work.
        end = min(end, (sequence.num_blocks + self.pool.num_free) * BLOCK_TOKENS)
        if sequence.phase is Phase.RUNNING and end > sequence.num_computed:
            missing = blocks_for(end) - sequence.num_blocks
            sequence.add_blocks([self.pool.allocate() for _ in range(missing)])
            step.add(sequence, end - sequence.num_computed)

    # commit ----------------------------------------------------------------------------------

    def commit(self, step: Step) -> None:
        """The step ran: its tokens are in KV, and the blocks it filled can be found.

        What a rejected guess left in KV is beyond `num_computed`: overwritten before it is read.
        """
        for sequence, tokens in step.segments.items():
            self.recomputed_tokens += sequence.advance(tokens)
            self._publish(sequence)

    def _publish(self, sequence: Sequence) -> None:
        full = sequence.num_computed // BLOCK_TOKENS
        if full == sequence.num_published:
            return
        table = sequence.table.tolist()
        for index in range(sequence.num_published, full):
            key = sequence.key(index)
            self.pool.publish(table[index], key, sequence.block_bytes(index))
            self._wake(self._leaders.published(sequence, key))
        sequence.num_published = full

    def check(self) -> None:
        """Prove the invariants of pool and scheduler. Raises `InternalFault`."""
        self.pool.check(sequence.table.tolist() for sequence in self.running)
        for sequence in self.running:
            fits = sequence.num_computed <= sequence.num_blocks * BLOCK_TOKENS
            if sequence.phase is not Phase.RUNNING or not fits or sequence.uncomputed < 1:
                raise InternalFault(f"{sequence!r} must not be among the running.")
        for key, followers in self._leaders.waiting_keys().items():
            leader = self._leaders.leader_of(key)
            if leader is None or leader.phase is not Phase.RUNNING:
                raise InternalFault(f"{followers!r} wait for blocks that nobody computes.")
        if not self.running and len(self._leaders):
            raise InternalFault("Blocks are announced, but nothing runs.")


def share_out(wanted: list[int], budget: int) -> list[int]:
    """Divide `budget` tokens over prefills that want so many each, given from the oldest on.

    The oldest is sure of a quarter, or a block; then the shortest are served in full first.
    """
    given = [0] * len(wanted)
    if wanted:
        given[0] = min(wanted[0], max(BLOCK_TOKENS, budget // _OLDEST_SHARE), budget)
    left = budget - sum(given)
    for index in sorted(range(len(wanted)), key=wanted.__getitem__):
        more = min(wanted[index] - given[index], left)
        given[index] += more
        left -= more
    return given


def _next_blocks(sequence: Sequence) -> int:
    """Blocks that a running sequence will want before guesses may have any."""
    return 1 + max(0, blocks_for(sequence.num_tokens) - sequence.num_blocks)


def _age(sequence: Sequence) -> tuple[int, int]:
    return sequence.order


def _negative(sequence: Sequence) -> tuple[int, int]:
    number, choice = sequence.order
    return (-number, -choice)
