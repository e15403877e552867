"""Guesses follow what steps are measured to take."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from engine.runner.base import Batch
from engine.speculate.drafter import MAX_DRAFT_TOKENS
from tests.fakes.executor import HashExecutor
from tests.fakes.guesses import Bent, bends, of_request
from tests.fakes.rig import PLAIN, Rig, request_of
from tests.fakes.tokenizer import END, VOCAB_SIZE

TOKENS = 200


def drafted(
    *, base_s: float, row_s: float, streams: int = 1, steps: list[float] | None = None
) -> tuple[int, float]:
    """Tokens guessed by one who is always right, and seconds, where steps take so long.

    steps: the seconds of each step are appended to it
    """
    told = HashExecutor()
    seeded = replace(PLAIN, seed=1)

    def said(prompt: list[int]) -> list[int]:
        return told.generate(prompt, TOKENS, seeded, seed=1)

    proposers = of_request(
        lambda request: Bent(said(request.prompts[0].tolist()), VOCAB_SIZE, bends(END)["right"])
    )

    def run(batch: Batch) -> None:
        taken_s = base_s + row_s * len(batch.tokens)
        rig.clock.now_s += taken_s
        if steps is not None:
            steps.append(taken_s)

    rig = Rig(num_blocks=4096, on_run=run, proposers=proposers, max_num_seqs=64)
    for number in range(streams):
        rig.submit(request_of(f"r{number}", [number] * 40, TOKENS, sampling=seeded))
    rig.run()
    tally = rig.core.statistics().speculation.get("bent")
    return (tally.drafted if tally else 0), rig.clock.now_s


def test_a_single_stream_whose_steps_wait_for_weights_is_guessed_far() -> None:
    tokens, seconds = drafted(base_s=0.010, row_s=0.001)
    assert tokens > TOKENS * 0.8
    assert seconds < TOKENS * 0.011 / 2.5


@pytest.mark.parametrize("streams", [1, 32])
def test_where_rows_are_all_that_steps_take_nothing_is_guessed(streams: int) -> None:
    tokens, _ = drafted(base_s=0.0001, row_s=0.001, streams=streams)
    assert tokens <= MAX_DRAFT_TOKENS + streams * TOKENS * 0.05  # the first before it was seen


def test_neighbours_are_kept_waiting_no_longer_than_the_target() -> None:
    """A step of ten rows would take 0.13 s; alone it may."""
    steps: list[float] = []
    alone, _ = drafted(base_s=0.03, row_s=0.01, steps=steps)
    assert alone > TOKENS * 0.7
    assert max(steps[5:]) > 0.12
    steps.clear()
    both, _ = drafted(base_s=0.03, row_s=0.01, streams=2, steps=steps)
    assert both > TOKENS * 0.7
    assert 0.05 < max(steps[20:40]) < 0.1 + 0.01  # both are there


def test_a_full_batch_is_left_alone() -> None:
    """32 decodes fill the step; what a guess may gain is less than its row takes."""
    tokens, _ = drafted(base_s=0.002, row_s=0.001, streams=32)
    assert tokens < 32 * TOKENS * 0.1
