"""The requests that are alive, and every way in which one ends."""

from __future__ import annotations

import math

import msgspec

from engine.admission import ExpectedLength
from engine.job import Choice, Job
from engine.outbox import Outbox, Sink
from engine.protocol.errors import Cancelled, DeadlineExceeded, FewerError, InvalidRequest
from engine.protocol.frames import Accepted, Failed, Started
from engine.runner.base import Sampled
from engine.scheduler import Scheduler
from engine.sequence import Phase, Sequence
from engine.stats import Recorder


class Roster:
    """Jobs by connection and id. Keeps scheduler, outbox and counters in step with them.

    Core thread only, and never while a step runs. Each job gets exactly one terminal: an event
    with `usage`, or a `Failed`; a dropped connection gets none.
    """

    def __init__(self, scheduler: Scheduler, outbox: Outbox, recorder: Recorder) -> None:
        self._scheduler, self._outbox, self._recorder = scheduler, outbox, recorder
        self._jobs: dict[tuple[Sink, str], Job] = {}
        self._choices: dict[Sequence, Choice] = {}
        self.expected = ExpectedLength()
        self.next_deadline_s = math.inf
        """When `expire` has something to do at the earliest."""

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def num_choices(self) -> int:
        """Choices that have not ended, whatever they do now."""
        return len(self._choices)

    def find(self, sink: Sink, id: str) -> Job | None:
        return self._jobs.get((sink, id))

    # life ------------------------------------------------------------------------------------

    def enter(self, job: Job) -> None:
        """Queue a job that passed the gate."""
        request = job.request
        self._jobs[job.sink, request.id] = job
        for choice in job.choices:
            self._choices[choice.sequence] = choice
            self._scheduler.add(choice.sequence)
        if request.deadline is not None:
            self.next_deadline_s = min(self.next_deadline_s, request.deadline)
        self._recorder.requests_accepted += 1
        self._recorder.prompt_tokens += request.prompt_tokens
        self._outbox.frame(job.sink, Accepted(request.id, request.prompt_tokens))

    def started(self, sequence: Sequence, now_s: float) -> None:
        """A choice is in a step for the first time."""
        job = self._choices[sequence].job
        job.count_cached(sequence)
        if job.started_s is None:
            job.started_s = now_s
            queue_ms = job.queued_s * 1000
            self._outbox.frame(job.sink, Started(job.request.id, sequence.cached_tokens, queue_ms))

    def pause(self, sink: Sink, id: str) -> None:
        job = self.find(sink, id)
        for choice in job.choices if job else ():
            self._scheduler.pause(choice.sequence)

    def resume(self, sink: Sink, id: str) -> None:
        job = self.find(sink, id)
        for choice in job.choices if job else ():
            self._scheduler.resume(choice.sequence)

    # tokens ----------------------------------------------------------------------------------

    def take(self, sequence: Sequence, sampled: Sampled, now_s: float) -> None:
        """Commit a sampled token of a choice, unless its job has ended in this very step."""
        choice = self._choices.get(sequence)
        if choice is None:
            return
        if sampled.token < 0:
            self.fail(
                choice.job,
                InvalidRequest(_why_nothing(sequence)),
            )
            return
        sequence.append(sampled.token)
        self._observe_token(choice, now_s)
        event = choice.output.accept(sampled)
        if event is None:
            return
        if event.finish is not None:
            self.expected.observe(choice.output.num_tokens)
            self._retire(choice, event.finish)
            if choice.job.num_open == 0:
                event = msgspec.structs.replace(event, usage=choice.job.usage())
                self._recorder.request_latency_s.observe(choice.job.age_s(now_s))
                del self._jobs[choice.job.sink, choice.job.request.id]
        self._outbox.event(choice.job.sink, event)

    def _observe_token(self, choice: Choice, now_s: float) -> None:
        job, last_s = choice.job, choice.last_token_s
        self._recorder.token(None if last_s is None else now_s - last_s)
        choice.last_token_s = now_s
        if not job.spoke:
            job.spoke = True
            self._recorder.first_token(job.age_s(now_s), job.queued_s, cached=job.cached_tokens > 0)

    # endings ---------------------------------------------------------------------------------

    def cancel(self, sink: Sink, id: str) -> None:
        job = self.find(sink, id)
        if job is not None:
            self.fail(job, Cancelled("The request was cancelled."))

    def fail(self, job: Job, error: FewerError) -> None:
        """End a job, all its choices, with an error."""
        self._end(job, "cancelled" if isinstance(error, Cancelled) else "failed")
        self._outbox.frame(job.sink, Failed.of(job.request.id, error))

    def fail_sequence(self, sequence: Sequence, error: FewerError) -> None:
        """End the job that a sequence belongs to, unless that has happened already."""
        choice = self._choices.get(sequence)
        if choice is not None:
            self.fail(choice.job, error)

    def fail_all(self, error: FewerError) -> None:
        for job in list(self._jobs.values()):
            self.fail(job, error)

    def drop(self, sink: Sink) -> None:
        """End everything of a connection that is gone, without a word to it."""
        for job in [job for job in self._jobs.values() if job.sink is sink]:
            self._end(job, "cancelled")
        self._outbox.forget(sink)

    def expire(self, now_s: float) -> None:
        """Fail every job whose deadline has passed."""
        if now_s < self.next_deadline_s:
            return
        self.next_deadline_s = math.inf
        for job in list(self._jobs.values()):
            deadline = job.request.deadline
            if deadline is not None and deadline <= now_s:
                self.fail(job, DeadlineExceeded("The request ran out of time."))
            elif deadline is not None:
                self.next_deadline_s = min(self.next_deadline_s, deadline)

    def _end(self, job: Job, reason: str) -> None:
        for choice in job.choices:
            if choice.sequence.phase is not Phase.ENDED:
                self._retire(choice, reason)
        del self._jobs[job.sink, job.request.id]

    def _retire(self, choice: Choice, reason: str) -> None:
        choice.job.num_open -= 1
        self._scheduler.remove(choice.sequence)
        self._recorder.finish(reason)
        del self._choices[choice.sequence]


def _why_nothing(sequence: Sequence) -> str:
    if sequence.grammar is not None and sequence.grammar.error:
        return f"The grammar has become too complex here: {sequence.grammar.error}"
    return "The sampling parameters leave no token that may be produced."
