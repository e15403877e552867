"""What is refused at the door: requests that are wrong, cannot fit, or would wait too long."""

from __future__ import annotations

import math
from collections.abc import Callable

from engine.admission import Limits
from engine.protocol.errors import DeadlineExceeded, Overloaded
from engine.request import Request
from engine.scheduler import Scheduler
from engine.step_time import StepTimeModel

_LONGEST_RETRY_S = 60.0


class Gate:
    """Checks requests before they queue. Reads the scheduler, changes nothing, on any thread.

    max_num_waiting: choices that may wait, and as many again that may be paused
    """

    def __init__(
        self,
        limits: Limits,
        scheduler: Scheduler,
        step_time: StepTimeModel,
        *,
        vocab_size: int,
        max_num_seqs: int,
        max_num_waiting: int,
        clock: Callable[[], float],
    ) -> None:
        self._limits, self._scheduler, self._step_time = limits, scheduler, step_time
        self._vocab_size = vocab_size
        self._max_num_seqs, self._max_num_waiting = max_num_seqs, max_num_waiting
        self._clock = clock

    def check(self, request: Request, paused: int) -> None:
        """paused: choices that are paused now.

        Raises `InvalidRequest`, `ContextLengthExceeded`, `Overloaded` or `DeadlineExceeded`.
        """
        request.validate(self._vocab_size)
        caps = self._limits.max_tokens(request)
        if request.grammar is not None:
            request.grammar.check_cap(min(caps))
        waiting = self._scheduler.num_waiting
        # Apart, so that slow readers do not take the queue from the others, and still bounded.
        if max(waiting, paused) >= self._max_num_waiting:
            raise Overloaded(
                f"{waiting} choices wait already and {paused} are paused; the server's limit is "
                f"max_num_waiting = {self._max_num_waiting}. Retry later.",
                retry_after_s=_retry_after_s(self.wait_s() / max(1, waiting)),
            )
        if request.deadline is not None:
            self._check_deadline(request.deadline - self._clock())

    def _check_deadline(self, left_s: float) -> None:
        if left_s <= 0:
            raise DeadlineExceeded("The request ran out of time before it was queued.")
        wait_s = self.wait_s()
        # Half, because fairness may serve this one before much of what waits.
        if wait_s / 2 > left_s:
            raise Overloaded(
                f"About {wait_s:.0f} s of work wait, but the deadline is in {left_s:.1f} s. "
                f"Retry later.",
                retry_after_s=_retry_after_s(wait_s - left_s),
            )

    def wait_s(self) -> float:
        """How long what is queued will keep the executor busy, by the fitted step time."""
        queue, predict_s = self._scheduler.queue, self._step_time.predict_s
        width = max(1, min(self._max_num_seqs, len(self._scheduler.running) + len(queue)))
        prefill_s = queue.prefill_tokens * (predict_s(1, 0) - predict_s(0, 0))
        return prefill_s + queue.output_tokens * predict_s(width, 0) / width


def _retry_after_s(seconds: float) -> float:
    return float(min(_LONGEST_RETRY_S, max(1, math.ceil(seconds))))
