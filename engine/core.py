"""The engine's heart: requests in, steps on one thread, frames out.

Each turn of the loop drains the inbox, lets deadlines pass, schedules, runs, commits. What the
inbox held when a step was scheduled is in force for that step: a request whose cancel arrived
before is not in it. While a step runs nothing is freed, so no launched step names a block that
belongs to somebody else.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from engine.admission import Limits
from engine.batch import build_batch
from engine.gate import Gate
from engine.job import JobFactory
from engine.kv import KVPool
from engine.outbox import Outbox, Sink
from engine.protocol.errors import FewerError, InternalFault, InvalidRequest, Unavailable
from engine.protocol.frames import Failed
from engine.protocol.settings import EngineSettings
from engine.request import Request
from engine.roster import Roster
from engine.runner.base import Executor
from engine.scheduler import Scheduler
from engine.speculate.speculator import Proposers, Speculator, proposers_for
from engine.speculate.verify import Run, verify
from engine.stats import Recorder, Statistics
from engine.step import Step
from engine.step_time import StepTimeModel
from engine.text.tokenizer import Tokenizer

__all__ = ["Core", "Sink"]

logger = logging.getLogger(__name__)

MAX_FAILED_STEPS = 3
"""Steps that may raise in a row before the engine declares itself dead."""
_RESTART_S = 5.0
"""How long a client should wait for an engine that goes away to be replaced."""


class Core:
    """Continuous batching over one executor. Owns the executor and its KV memory from here on.

    submit, cancel, pause, resume, drop, check_request and statistics may be called from any
    thread; they return at once. Everything else happens on the core thread.

    executor:   not yet allocated: `Core` does that here, and closes it when it stops
    num_blocks: size of the KV pool, in blocks of BLOCK_TOKENS tokens
    clock:      `time.monotonic`, or a test's own
    proposers:  who guesses for a request; None for those of the settings
    """

    def __init__(
        self,
        executor: Executor,
        tokenizer: Tokenizer,
        settings: EngineSettings,
        num_blocks: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        proposers: Proposers | None = None,
    ) -> None:
        shape = executor.shape
        self._executor, self._clock = executor, clock
        self._limits = Limits(min(settings.max_model_len, shape.context_length), num_blocks)
        self._step_time, self._recorder, self._outbox = StepTimeModel(), Recorder(), Outbox()
        self._speculator = Speculator(
            self._step_time, proposers or proposers_for(settings.speculation), shape.vocab_size
        )
        self._scheduler = Scheduler(
            KVPool(num_blocks),
            self._step_time,
            self._speculator,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            target_itl_s=settings.target_itl_ms / 1000,
        )
        self._gate = Gate(
            self._limits,
            self._scheduler,
            self._step_time,
            vocab_size=min(tokenizer.vocab_size, shape.vocab_size),
            max_num_seqs=settings.max_num_seqs,
            max_num_waiting=settings.max_num_waiting,
            clock=clock,
        )
        storage = f"{executor.name}/{shape.kv_dtype}"
        self._factory = JobFactory(
            self._limits, tokenizer, self._speculator, model=shape.name, storage=storage
        )
        self._roster = Roster(self._scheduler, self._outbox, self._recorder)
        self._num_failed_steps = 0
        self._needs_check = False
        self._progress_s = clock()
        self._wake = threading.Condition()
        self._inbox: deque[Callable[[], None]] = deque()
        self._stop_at_s: float | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        executor.allocate(num_blocks)

    # any thread ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the core thread. Called once."""
        self._thread = threading.Thread(target=self._loop, name="fewer-core", daemon=True)
        self._thread.start()

    def stop(self, deadline_s: float) -> None:
        """Drain: refuse what is new, finish what was accepted, fail the rest after `deadline_s`.

        Returns when the core thread has ended; an executor that hangs is left behind a second
        after the deadline. Safe to call twice.
        """
        with self._wake:
            self._stop_at_s = self._clock() + deadline_s
            self._wake.notify()
        if self._thread is None:
            self._close()
        else:
            self._thread.join(deadline_s + 1.0)

    def submit(self, request: Request, sink: Sink) -> None:
        """Queue a request. All that becomes of it, errors included, comes through `sink`.

        Raises `Unavailable` when the core has stopped, for then nobody would answer.
        """
        if not self._post(partial(self._submit, request, sink)):
            raise _going_away()

    def cancel(self, sink: Sink, id: str) -> None:
        """End a request: no step scheduled after this contains it. Unknown ids are ignored."""
        self._post(partial(self._roster.cancel, sink, id))

    def pause(self, sink: Sink, id: str) -> None:
        """Produce nothing more for a request until `resume`. Its deadline keeps running."""
        self._post(partial(self._roster.pause, sink, id))

    def resume(self, sink: Sink, id: str) -> None:
        self._post(partial(self._roster.resume, sink, id))

    def drop(self, sink: Sink) -> None:
        """The connection is gone: cancel everything on it and deliver nothing more to it."""
        self._post(partial(self._roster.drop, sink))

    def check_request(self, request: Request) -> None:
        """Raise what `submit` would deliver, so that HTTP can still answer with a status.

        Raises `InvalidRequest`, `ContextLengthExceeded`, `Overloaded`, `DeadlineExceeded` or
        `Unavailable`. Changes nothing; the queue may have filled by the time of `submit`.
        """
        if self._closed or self._stop_at_s is not None:
            raise _going_away()
        self._gate.check(request, self._num_paused())

    @property
    def alive(self) -> bool:
        """The core thread runs and takes requests."""
        return self._thread is not None and self._thread.is_alive() and not self._closed

    @property
    def seconds_since_step(self) -> float:
        """How long the step that runs now has lasted; 0 while there is nothing to run."""
        if not self._scheduler.running and not self._scheduler.num_waiting:
            return 0.0
        return max(0.0, self._clock() - self._progress_s)

    def statistics(self) -> Statistics:
        """One look at the engine."""
        scheduler = self._scheduler
        return self._recorder.snapshot(
            running=len(scheduler.running),
            waiting=scheduler.num_waiting,
            paused=self._num_paused(),
            kv_usage_ratio=scheduler.pool.usage_ratio,
            kv_capacity_tokens=self._limits.pool_tokens,
            prefix_cache_queries_tokens=scheduler.prefix_query_tokens,
            prefix_cache_hits_tokens=scheduler.prefix_hit_tokens,
            preemptions=scheduler.num_preemptions,
            recomputed_tokens=scheduler.recomputed_tokens,
            speculation=self._speculator.tallies,
            seconds_since_step=self.seconds_since_step,
        )

    def _num_paused(self) -> int:
        scheduler = self._scheduler
        return max(0, self._roster.num_choices - len(scheduler.running) - scheduler.num_waiting)

    def _post(self, command: Callable[[], None]) -> bool:
        """Hand a command to the core thread; False when that has ended, and nothing is left."""
        with self._wake:
            if not self._closed:
                self._inbox.append(command)
                self._wake.notify()
            return not self._closed

    # the core thread -------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            while not self._finished():
                if not self.turn():
                    self._sleep()
        except Exception:
            logger.exception("The core loop failed. The engine is not alive any more.")
        finally:
            self._close()

    def _finished(self) -> bool:
        if self._stop_at_s is None:
            return False
        idle = not self._roster and not self._inbox
        return idle or self._clock() >= self._stop_at_s

    def _sleep(self) -> None:
        """Wait for a command, the next deadline, or the end; nothing is polled."""
        with self._wake:
            until_s = self._roster.next_deadline_s
            if self._stop_at_s is not None:
                until_s = min(until_s, self._stop_at_s if self._roster else 0.0)
            left_s = None if math.isinf(until_s) else max(0.0, until_s - self._clock())
            if not self._inbox:
                self._wake.wait(left_s)

    def _close(self) -> None:
        """Answer everything that is left, and give the memory back."""
        with self._wake:
            if self._closed:
                return
            self._closed = True
        self._drain()
        self._roster.fail_all(_going_away())
        self._outbox.flush()
        self._executor.close()

    def turn(self) -> bool:
        """Drain the inbox and run one step. False when there was nothing to run.

        The core thread calls this, or a test without a thread. Raises what the executor raised
        when MAX_FAILED_STEPS steps in a row have failed.
        """
        self._progress_s = self._clock()
        self._drain()
        self._roster.expire(self._clock())
        step = self._scheduler.schedule()
        now_s = self._clock()
        for sequence in step.started:
            self._roster.started(sequence, now_s)
        self._flush()
        if not step:
            self._check_when_idle()
            return False
        self._needs_check = True
        self._run(step)
        return True

    def _drain(self) -> None:
        with self._wake:
            commands, self._inbox = self._inbox, deque()
        for command in commands:
            command()

    def _submit(self, request: Request, sink: Sink) -> None:
        if self._roster.find(sink, request.id) is not None:
            # The id's own stream goes on: an error under that id would end it for its reader.
            error = InvalidRequest(f"The id {request.id!r} is in use. Ids are never reused.")
            self._outbox.frame(sink, Failed.of("", error))
            return
        try:
            self.check_request(request)
            expected = self._roster.expected.tokens
            job = self._factory.make(request, sink, default_expected_tokens=expected)
        except FewerError as error:
            self._outbox.frame(sink, Failed.of(request.id, error))
            return
        self._roster.enter(job)

    def _check_when_idle(self) -> None:
        """Prove that nothing leaked. A violation costs the cache, never the service."""
        if self._roster or not self._needs_check:
            return
        self._needs_check = False
        try:
            self._scheduler.check()
        except InternalFault:
            logger.exception("The KV pool is inconsistent. Its cache is dropped.")
            self._scheduler.evict()

    # one step --------------------------------------------------------------------------------

    def _run(self, step: Step) -> None:
        batch, owners = build_batch(step)
        began_s = self._clock()
        try:
            sampled = self._executor.run(batch)
            if len(sampled) != len(owners):
                raise InternalFault(f"{len(sampled)} of {len(owners)} rows were sampled.")
        except Exception:
            logger.exception("A step of %d sequences failed.", len(step.segments))
            self._survive(step)
            if self._num_failed_steps >= MAX_FAILED_STEPS:
                raise
            return
        now_s = self._progress_s = self._clock()
        self._num_failed_steps = 0
        self._step_time.observe(step.rows, step.reads, now_s - began_s)
        self._recorder.step_time_s.observe(now_s - began_s)
        runs = verify(owners, sampled)
        for run in runs:
            step.reject(run.sequence, run.rejected)
            self._speculator.observe(run)
        self._scheduler.commit(step)
        self._commit(runs, now_s)

    def _survive(self, step: Step) -> None:
        """A step raised: fail its requests, trust nothing that is in KV, go on with the rest."""
        self._num_failed_steps += 1
        self._recorder.executor_failures += 1
        for sequence in step.segments:
            self._roster.fail_sequence(sequence, InternalFault("The step computing this failed."))
        self._scheduler.evict()
        self._flush()

    def _commit(self, runs: list[Run], now_s: float) -> None:
        """Take the tokens of a step. First tokens leave ahead, in a small frame of their own."""
        first = [run for run in runs if run.sequence.output_tokens == 0]
        later = [run for run in runs if run.sequence.output_tokens > 0]
        for part in (first, later):
            for run in part:
                for sampled in run.sampled:
                    self._roster.take(run.sequence, sampled, now_s)
            self._flush()

    def _flush(self) -> None:
        for sink in self._outbox.flush():
            # By the inbox, not at once: the step just scheduled may name its sequences.
            self.drop(sink)


def _going_away() -> Unavailable:
    return Unavailable("The engine is stopping or has failed.", retry_after_s=_RESTART_S)
