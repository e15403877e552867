"""A core without a thread, and requests for it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.core import Core
from engine.protocol.sampling import Sampling
from engine.protocol.settings import EngineSettings
from engine.request import Request
from engine.runner.base import Batch
from engine.speculate.speculator import Proposers
from tests.fakes.clock import FakeClock
from tests.fakes.executor import HashExecutor
from tests.fakes.sink import FakeSink
from tests.fakes.tokenizer import byte_tokenizer

LETTERS = list(range(ord("a"), ord("z") + 1))
DEFAULTS = {"max_model_len": 2048, "max_num_batched_tokens": 64, "speculation": "off"}
PLAIN = Sampling(temperature=0, allowed_token_ids=LETTERS)


def request_of(
    id: str, prompt: str | list[int] = "prompt", max_tokens: int | None = 8, **rest: object
) -> Request:
    ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
    fields: dict[str, object] = {"sampling": PLAIN, "arrival": 0.0} | rest
    return Request(id=id, prompts=[np.array(ids, np.int32)], max_tokens=max_tokens, **fields)  # type: ignore[arg-type]


class Rig:
    """Tests take the core's turns one by one, and move its clock.

    proposers: who guesses, in place of those of the settings; nobody as a rule, so that steps
               can be counted
    """

    def __init__(
        self,
        *,
        num_blocks: int = 256,
        end_every: int = 0,
        on_run: Callable[[Batch], None] | None = None,
        executor: HashExecutor | None = None,
        proposers: Proposers | None = None,
        **told: int | str,
    ) -> None:
        self.executor = executor or HashExecutor(end_every=end_every, on_run=on_run)
        self.clock = FakeClock()
        self.num_blocks = num_blocks
        settings = EngineSettings(**(DEFAULTS | told))  # type: ignore[arg-type]
        self.core = Core(
            self.executor,
            byte_tokenizer(),
            settings,
            num_blocks,
            clock=self.clock,
            proposers=proposers,
        )
        self.sink = FakeSink()

    def submit(self, request: Request) -> None:
        self.core.submit(request, self.sink)

    def run(self) -> None:
        """Take turns until there is nothing to run."""
        while self.core.turn():
            pass

    def alone(self, request: Request, choice: int = 0) -> str:
        """The text of a choice that nothing happens to."""
        prompt = request.prompts[choice // request.n].tolist()
        tokens = self.executor.generate(
            prompt,
            request.max_tokens or 0,
            request.sampling,
            seed=request.sampling.seed or 0,
            choice=choice,
        )
        return byte_tokenizer().decode(tokens)

    def assert_drained(self) -> None:
        now = self.core.statistics()
        assert (now.running, now.waiting, now.paused, now.kv_usage_ratio) == (0, 0, 0, 0.0)
