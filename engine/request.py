"""What the engine is asked to do: one request of prompts x n choices."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.protocol.errors import InvalidRequest
from engine.protocol.sampling import MAX_CHOICES, Sampling
from engine.runner.base import Int32

if TYPE_CHECKING:
    from engine.grammar.compiled import Compiled

MAX_PROMPTS = 2048
MAX_REQUEST_CHOICES = 2048


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Request:
    """One request, after tokenising. Choice numbers are prompt_index * n + i.

    id:              unique on its connection, never reused
    prompts:         int32[P] each, the ids of every prompt
    n:               choices for each prompt
    max_tokens:      per choice; None takes what the context and the pool leave
    clamp:           max_tokens gives way to what they leave; otherwise the request is refused
    soft_max_tokens: per choice; from this many on the output ends where it may; None for never
    salt:            roots the prefix cache: other salts never share blocks
    tenant, weight:  the fair queue shares by tenant, in proportion to weight
    priority:        higher first within a tenant
    deadline:        `time.monotonic()` seconds after which the request fails; None for never
    prompt_field:    the field of the client's body that held the prompts, for errors to name
    expected_tokens: how long an answer usually is; reserved for at admission
    grammar:         what every choice must be, compiled; None for free text
    prediction:      int32[N], what the answer will mostly be, if somebody knows; a guess only
    arrival:         `time.monotonic()` seconds; queue time and first-token time start here
    """

    id: str
    prompts: list[Int32]
    sampling: Sampling = field(default_factory=Sampling)
    n: int = 1
    max_tokens: int | None = None
    clamp: bool = False
    soft_max_tokens: int | None = None
    salt: str = ""
    tenant: str = ""
    weight: float = 1.0
    priority: int = 0
    deadline: float | None = None
    expected_tokens: int | None = None
    grammar: Compiled | None = None
    prediction: Int32 | None = None
    prompt_field: str = "prompt"
    arrival: float = field(default_factory=time.monotonic)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts together."""
        return sum(len(prompt) for prompt in self.prompts)

    @property
    def num_choices(self) -> int:
        return self.n * len(self.prompts)

    def validate(self, vocab_size: int) -> None:
        """Raise `InvalidRequest` naming the first field that no engine could honour."""
        self.sampling.validate(vocab_size)
        self._validate_counts()
        for prompt in self.prompts:
            if len(prompt) == 0:
                raise InvalidRequest(
                    "A prompt must have at least one token.", param=self.prompt_field
                )
            if prompt.min() < 0 or prompt.max() >= vocab_size:
                raise InvalidRequest(
                    f"A prompt names token ids outside the vocabulary (0 to {vocab_size - 1}).",
                    param=self.prompt_field,
                )

    def _validate_counts(self) -> None:
        if not 1 <= len(self.prompts) <= MAX_PROMPTS:
            raise InvalidRequest(
                f"A request may have 1 to {MAX_PROMPTS} prompts, not {len(self.prompts)}.",
                param=self.prompt_field,
            )
        if not 1 <= self.n <= MAX_CHOICES:
            raise InvalidRequest(f"n must be between 1 and {MAX_CHOICES}, not {self.n}.", param="n")
        if self.num_choices > MAX_REQUEST_CHOICES:
            raise InvalidRequest(
                f"{len(self.prompts)} prompts with n={self.n} are {self.num_choices} choices; "
                f"a request may have {MAX_REQUEST_CHOICES}.",
                param="n",
            )
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvalidRequest(
                f"max_tokens must be at least 1, not {self.max_tokens}.", param="max_tokens"
            )
        if self.soft_max_tokens is not None and self.soft_max_tokens < 1:
            raise InvalidRequest(
                f"soft_max_tokens must be at least 1, not {self.soft_max_tokens}.",
                param="soft_max_tokens",
            )
        if self.max_tokens is not None and self.sampling.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens ({self.sampling.min_tokens}) must not exceed max_tokens "
                f"({self.max_tokens}).",
                param="min_tokens",
            )
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise InvalidRequest(f"weight must be above 0, not {self.weight}.", param="weight")
