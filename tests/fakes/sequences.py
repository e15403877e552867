"""A scheduler with an executor behind it and nothing else: no thread, no text, no connections."""

from __future__ import annotations

import numpy as np

from engine.admission import Limits
from engine.batch import build_batch
from engine.kv import KVPool
from engine.prefix import root_key
from engine.protocol.sampling import Sampling
from engine.request import Request
from engine.scheduler import Scheduler
from engine.sequence import Phase, Sequence
from engine.speculate.speculator import Speculator, proposers_for
from engine.step import Step
from engine.step_time import StepTimeModel
from tests.fakes.executor import HashExecutor

GREEDY = Sampling(temperature=0)


class Bench:
    """Runs sequences to their caps; keeps what each said, and which steps it was in."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 64,
        target_itl_s: float = 0.1,
    ) -> None:
        self.limits = Limits(4096, num_blocks)
        self.executor = HashExecutor()
        self.executor.allocate(num_blocks)
        self.step_time = StepTimeModel()
        self.scheduler = Scheduler(
            KVPool(num_blocks),
            self.step_time,
            Speculator(self.step_time, proposers_for("off"), self.executor.shape.vocab_size),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            target_itl_s=target_itl_s,
        )
        self.alive: list[Sequence] = []
        self._arrivals = 0

    @property
    def pool(self) -> KVPool:
        return self.scheduler.pool

    def submit(
        self,
        prompt: list[int],
        max_tokens: int = 8,
        *,
        n: int = 1,
        sampling: Sampling = GREEDY,
        salt: str = "",
        tenant: str = "",
        weight: float = 1.0,
        priority: int = 0,
        expected_tokens: int | None = None,
    ) -> list[Sequence]:
        """Raises `ContextLengthExceeded` as the engine would."""
        self._arrivals += 1
        request = Request(
            id=f"r{self._arrivals}",
            prompts=[np.array(prompt, np.int32)],
            sampling=sampling,
            n=n,
            max_tokens=max_tokens,
            salt=salt,
            tenant=tenant,
            weight=weight,
            priority=priority,
            expected_tokens=expected_tokens,
        )
        caps = self.limits.max_tokens(request)
        sequences = [
            Sequence(
                request,
                choice,
                arrival_number=self._arrivals,
                max_tokens=caps[0],
                expected_tokens=expected_tokens or caps[0],
                seed=0,
                end_ids=frozenset(),
                root=root_key(salt, "hash", "test"),
            )
            for choice in range(n)
        ]
        for sequence in sequences:
            self.scheduler.add(sequence)
        self.alive += sequences
        return sequences

    def step(self) -> Step:
        """One step, committed. Sequences that reach their cap are removed."""
        step = self.schedule()
        self.commit(step)
        return step

    def schedule(self) -> Step:
        return self.scheduler.schedule()

    def commit(self, step: Step) -> None:
        if not step:
            return
        batch, sampled_of = build_batch(step)
        sampled = self.executor.run(batch)
        self.scheduler.commit(step)
        for sequence, one in zip(sampled_of, sampled, strict=True):
            sequence.append(one.token)
            if sequence.output_tokens == sequence.max_tokens:
                self.end(sequence)

    def end(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        self.alive.remove(sequence)

    def run(self, max_steps: int = 5000) -> int:
        """Step until nothing is left that can run. Returns how many steps that took."""
        for count in range(max_steps):
            if not self.step():
                return count
        raise AssertionError(f"{self.alive} did not end within {max_steps} steps.")

    def alone(self, sequence: Sequence) -> list[int]:
        """What a sequence has to say, however it is scheduled."""
        return self.executor.generate(
            sequence.prompt.tolist(),
            sequence.max_tokens,
            sequence.request.sampling,
            choice=sequence.choice,
        )


def running(sequence: Sequence) -> bool:
    return sequence.phase is Phase.RUNNING
