"""A request inside the engine: its choices, who reads them, and when what happened."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from engine.admission import Limits
from engine.outbox import Sink
from engine.output import Output, end_ids_of
from engine.prefix import root_key
from engine.protocol.frames import Usage
from engine.request import Request
from engine.sequence import Sequence
from engine.speculate.speculator import Speculator
from engine.text.tokenizer import Tokenizer

_SEED_BITS = 53
"""A drawn seed survives JSON readers whose numbers are doubles."""


@dataclass(slots=True, eq=False)
class Choice:
    """One output of a job: where it stands for the scheduler, and what was said of it."""

    job: Job
    sequence: Sequence
    output: Output
    last_token_s: float | None = None


@dataclass(slots=True, eq=False)
class Job:
    """A request and its choices.

    num_open:      choices that have not ended
    cached_tokens: of all prompts, each counted once however many choices share it
    started_s:     when the first choice was in a step for the first time
    spoke:         a token was produced
    """

    request: Request
    sink: Sink
    choices: list[Choice] = field(default_factory=list)
    num_open: int = 0
    cached_tokens: int = 0
    cached_prompts: set[int] = field(default_factory=set)
    started_s: float | None = None
    spoke: bool = False

    @property
    def queued_s(self) -> float:
        """Seconds from arrival to the first step; 0 before it."""
        return 0.0 if self.started_s is None else self.age_s(self.started_s)

    def age_s(self, now_s: float) -> float:
        return max(0.0, now_s - self.request.arrival)

    def count_cached(self, sequence: Sequence) -> None:
        """Note what a choice, just started, found in the cache."""
        prompt = sequence.choice // self.request.n
        if prompt not in self.cached_prompts:
            self.cached_prompts.add(prompt)
            self.cached_tokens += sequence.cached_tokens

    def usage(self) -> Usage:
        predictions = [
            drafter.tally("prediction")
            for choice in self.choices
            if (drafter := choice.sequence.drafter) is not None
        ]
        return Usage(
            prompt_tokens=self.request.prompt_tokens,
            completion_tokens=sum(choice.output.num_tokens for choice in self.choices),
            cached_tokens=self.cached_tokens,
            accepted_prediction_tokens=sum(tally.accepted for tally in predictions),
            rejected_prediction_tokens=sum(tally.rejected for tally in predictions),
            recomputed_tokens=sum(choice.sequence.recomputed_tokens for choice in self.choices),
        )


class JobFactory:
    """Makes jobs out of requests, once they are known to fit.

    storage: names how KV is stored; part of every prefix key
    """

    def __init__(
        self,
        limits: Limits,
        tokenizer: Tokenizer,
        speculator: Speculator,
        *,
        model: str,
        storage: str,
    ) -> None:
        self._limits, self._tokenizer, self._speculator = limits, tokenizer, speculator
        self._model, self._storage = model, storage
        self._arrivals = 0

    def make(self, request: Request, sink: Sink, *, default_expected_tokens: int) -> Job:
        """Raises `ContextLengthExceeded` for a request that can never fit."""
        caps = self._limits.max_tokens(request)
        seed = request.sampling.seed
        seed = secrets.randbits(_SEED_BITS) if seed is None else seed
        job = Job(request, sink, num_open=request.num_choices)
        self._arrivals += 1
        end_ids = end_ids_of(request, self._tokenizer)
        root = root_key(request.salt, self._model, self._storage)
        for choice in range(request.num_choices):
            cap = caps[choice // request.n]
            sequence = Sequence(
                request,
                choice,
                arrival_number=self._arrivals,
                max_tokens=cap,
                expected_tokens=request.expected_tokens or default_expected_tokens,
                seed=seed,
                end_ids=end_ids,
                root=root,
                drafter=self._speculator.drafter_for(request),
                grammar=None if request.grammar is None else request.grammar.begin(cap),
            )
            output = Output(
                request,
                choice,
                max_tokens=cap,
                end_ids=end_ids,
                seed=seed,
                tokenizer=self._tokenizer,
            )
            job.choices.append(Choice(job, sequence, output))
        return job
