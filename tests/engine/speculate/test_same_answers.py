"""Whatever is guessed, the answer is the one without guesses: event by event, with a core whose
executor finds every wrong slot, position and token."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.protocol.frames import Event
from engine.protocol.sampling import Sampling
from engine.request import Request
from engine.runner.base import Batch
from engine.speculate.ngram import NgramProposer
from engine.speculate.speculator import Proposers
from tests.fakes.executor import HashExecutor
from tests.fakes.guesses import Bent, Drawn, bends, of_request
from tests.fakes.rig import PLAIN, Rig, request_of
from tests.fakes.tokenizer import END, VOCAB_SIZE

pytestmark = pytest.mark.usefixtures("tireless")

BENDS = bends(END)
SEEDED = replace(PLAIN, seed=3)
FEW = list(range(ord("a"), ord("e")))
"""So few letters repeat themselves soon, which is what n-grams need."""


Answers = dict[tuple[str, int], list[Event]]
"""Events of each choice, without the usage, which tells what the way there was."""


def events_of(rig: Rig, requests: list[Request]) -> Answers:
    for request in requests:
        rig.submit(request)
    rig.run()
    rig.assert_drained()
    return seen_by(rig, requests)


def seen_by(rig: Rig, requests: list[Request]) -> Answers:
    return {
        (request.id, choice): [
            replace(event, usage=None) for event in rig.sink.events(request.id, choice)
        ]
        for request in requests
        for choice in range(request.num_choices)
    }


def said_by(executor: HashExecutor, request: Request, choice: int = 0) -> list[int]:
    return executor.generate(
        request.prompts[choice // request.n].tolist(),
        request.max_tokens or 0,
        request.sampling,
        seed=request.sampling.seed or 0,
        choice=choice,
    )


def knowing(bend: str, end_every: int = 0) -> Proposers:
    """Proposers that know the first choice's answer; a second choice is told the first's."""
    told = HashExecutor(end_every=end_every)
    return of_request(lambda request: Bent(said_by(told, request), VOCAB_SIZE, BENDS[bend]))


PROPOSERS: dict[str, Proposers] = {
    **{name: knowing(name, end_every=40) for name in BENDS},
    "drawn": of_request(lambda request: Drawn([*FEW, END], seed=1)),
    "ngram": of_request(lambda request: NgramProposer()),
}


def requests_of(count: int) -> list[Request]:
    """Every mixture of greedy and seeded, with logprobs, minimum, stops and two choices."""
    return [
        request_of(
            f"r{index}",
            [*([1] * (index % 40)), index],
            50 + index % 7,
            n=1 + index % 2,
            expected_tokens=1,
            sampling=Sampling(
                temperature=float(index % 2),
                seed=index,
                allowed_token_ids=FEW,
                logprobs=2 if index % 3 == 0 else None,
                min_tokens=5 if index % 4 == 1 else 0,
                stop=["abca"] if index % 4 == 2 else [],
                ignore_eos=index % 5 == 0,
            ),
        )
        for index in range(count)
    ]


@pytest.fixture(scope="module")
def plain() -> Callable[[int], Answers]:
    """What requests answer without guesses."""
    return lambda count: events_of(Rig(end_every=40), requests_of(count))


@pytest.mark.parametrize("num_blocks", [24, 512], ids=["preempted", "roomy"])
@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize("name", PROPOSERS)
def test_the_same_events_whoever_guesses(
    name: str, batch: int, num_blocks: int, plain: Callable[[int], Answers]
) -> None:
    rig = Rig(
        end_every=40, num_blocks=num_blocks, max_num_batched_tokens=64, proposers=PROPOSERS[name]
    )
    assert events_of(rig, requests_of(batch)) == plain(batch)
    now = rig.core.statistics()
    assert rig.executor.max_rows <= 64
    if num_blocks == 512:
        assert now.preemptions == 0
    elif batch == 32 and name not in ("right", "over-long"):  # those have ended before
        assert now.preemptions > 0
    for tally in now.speculation.values():
        assert 0 < tally.drafted
        assert name != "wrong" or tally.accepted < tally.drafted / 20  # by second choices


def test_who_is_right_saves_nearly_all_steps() -> None:
    request = request_of("r", max_tokens=100, sampling=SEEDED)
    slow, quick = Rig(), Rig(proposers=knowing("right"))
    assert events_of(slow, [request]) == events_of(quick, [request])
    assert slow.core.statistics().steps == 100
    assert quick.core.statistics().steps == 1 + -(-99 // 16)
    assert quick.core.statistics().generation_tokens == 100


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=st.lists(st.integers(1, 90), min_size=1, max_size=6),
    num_blocks=st.integers(16, 40),
    max_num_seqs=st.integers(1, 8),
    chunk=st.sampled_from([1, 16, 64, 512]),
    name=st.sampled_from(sorted(PROPOSERS)),
    data=st.data(),
)
def test_the_same_events_whatever_happens_around_it(
    sizes: list[int],
    num_blocks: int,
    max_num_seqs: int,
    chunk: int,
    name: str,
    data: st.DataObject,
) -> None:
    requests = [
        request_of(
            f"r{index}",
            [1] * size,
            data.draw(st.integers(1, 60)),
            n=data.draw(st.integers(1, 2)),
            expected_tokens=data.draw(st.integers(1, 60)),
            soft_max_tokens=data.draw(st.one_of(st.none(), st.integers(1, 40))),
            sampling=Sampling(temperature=float(index % 2), seed=index, allowed_token_ids=FEW),
        )
        for index, size in enumerate(sizes)
    ]
    undisturbed = events_of(Rig(end_every=40), requests)
    rig = Rig(
        end_every=40,
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=chunk,
        proposers=PROPOSERS[name],
    )
    for request in requests:
        rig.submit(request)
    gone = data.draw(st.sampled_from([None, *(request.id for request in requests)]))
    paused = data.draw(st.sampled_from([None, *(request.id for request in requests)]))
    for _ in range(data.draw(st.integers(0, 12))):
        rig.core.turn()
    if gone is not None:
        rig.core.cancel(rig.sink, gone)
    if paused is not None:
        rig.core.pause(rig.sink, paused)
        rig.run()
        rig.core.resume(rig.sink, paused)
    rig.run()
    rig.assert_drained()
    for choice, events in seen_by(rig, requests).items():
        cut = choice[0] == gone and bool(rig.sink.failures(gone))
        assert events == undisturbed[choice][: len(events) if cut else None]


# where an answer ends ----------------------------------------------------------------------------


class Reciting(HashExecutor):
    """Says one text, in UTF-8, and ends; still looks at what is in its KV memory."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.said = [*text.encode(), END]

    def next_token(
        self,
        tokens: list[int],
        prompt_tokens: int,
        sampling: Sampling,
        key: int,
        masked: frozenset[int] = frozenset(),
    ) -> int:
        produced = len(tokens) - prompt_tokens
        return self.said[produced] if produced < len(self.said) else END


def recited(text: str, sampling: Sampling, *, guessed: bool, **fields: object) -> list[Event]:
    executor = Reciting(text)
    proposers = of_request(lambda request: Bent(executor.said, VOCAB_SIZE, BENDS["right"]))
    rig = Rig(executor=executor, proposers=proposers if guessed else None)
    request = request_of("r", [7] * 20, sampling=sampling, **({"max_tokens": 200} | fields))  # type: ignore[arg-type]
    found = events_of(rig, [request])["r", 0]
    assert guessed == bool(rig.core.statistics().speculation)
    return found


TEXT = "Zwölf Boxkämpfer, 你好世界 🙂, jagen Viktor."


@pytest.mark.parametrize("start", range(2, len(TEXT) - 1))
def test_a_stop_string_anywhere_in_an_accepted_run(start: int) -> None:
    for end in (start + 1, start + 3):
        for include in (False, True):
            sampling = Sampling(temperature=0, seed=3, stop=[TEXT[start:end]], include_stop=include)
            assert recited(TEXT, sampling, guessed=True) == recited(TEXT, sampling, guessed=False)


def test_characters_split_over_tokens_come_out_whole() -> None:
    plain = Sampling(temperature=0, seed=3)
    events = recited(TEXT, plain, guessed=True)
    assert events == recited(TEXT, plain, guessed=False)
    assert "".join(event.text for event in events) == TEXT
    assert not any("\ufffd" in event.text for event in events)
    for cap in range(1, len(TEXT.encode())):
        assert recited(TEXT, plain, guessed=cap > 2, max_tokens=cap) == recited(
            TEXT, plain, guessed=False, max_tokens=cap
        )


def test_an_answer_lands_where_it_would_have() -> None:
    text = "One sentence here. Another follows it. A third one ends the text."
    for soft in range(1, 50, 3):
        with_guesses = recited(text, SEEDED, guessed=True, soft_max_tokens=soft)
        assert with_guesses == recited(text, SEEDED, guessed=False, soft_max_tokens=soft)


# room --------------------------------------------------------------------------------------------


def test_guesses_take_no_row_that_the_budget_lacks() -> None:
    rows: list[int] = []
    rig = Rig(
        max_num_batched_tokens=16,
        proposers=knowing("right"),
        on_run=lambda batch: rows.append(len(batch.tokens)),
    )
    requests = [request_of(f"r{index}", [index] * 9, 40) for index in range(3)]
    events_of(rig, requests)
    assert max(rows) == 16


def test_guesses_take_no_block_that_somebody_needs() -> None:
    """Two fill the pool to its last block, and neither has to give way."""
    rig = Rig(num_blocks=16, proposers=knowing("right"))
    requests = [request_of(f"r{index}", [index] * 16, 95, expected_tokens=95) for index in (1, 2)]
    events_of(rig, requests)
    assert rig.core.statistics().preemptions == 0


def test_a_step_that_fails_with_guesses_in_it_fails_its_requests_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(batch: Batch) -> None:
        if len(batch.samples) > 8:
            raise RuntimeError("A fault of the executor.")

    rig = Rig(on_run=fail, proposers=knowing("right"))
    rig.submit(request_of("r", max_tokens=40, sampling=SEEDED))
    rig.run()
    assert rig.sink.failure("r").code == "internal_error"
    rig.assert_drained()
    assert "failed" in caplog.text


def test_a_guess_after_which_nothing_may_come_fails_nobody() -> None:
    """The row behind a wrong guess leaves no token; it was never said, so nobody is told."""

    class Dry(HashExecutor):
        def next_token(
            self,
            tokens: list[int],
            prompt_tokens: int,
            sampling: Sampling,
            key: int,
            masked: frozenset[int] = frozenset(),
        ) -> int:
            if tokens[-1] == ord("z"):
                return -1
            return super().next_token(tokens, prompt_tokens, sampling, key, masked)

    no_z = replace(SEEDED, allowed_token_ids=FEW)
    rig = Rig(executor=Dry(), proposers=of_request(lambda request: Drawn([ord("z")], 1)))
    request = request_of("r", "prompt", 20, sampling=no_z)
    assert events_of(rig, [request]) == events_of(Rig(), [request])


# what is told ------------------------------------------------------------------------------------


def predicted(rig: Rig, request: Request, prediction: list[int]) -> Request:
    return dataclasses.replace(request, prediction=np.array(prediction, np.int32))


def test_usage_counts_the_prediction_s_tokens() -> None:
    rig = Rig(speculation="auto")
    request = request_of("r", [9] * 20, 64, sampling=SEEDED)
    said = said_by(rig.executor, request)
    events = events_of(rig, [predicted(rig, request, said)])
    usage = rig.sink.usage("r")
    assert usage.completion_tokens == 64
    assert usage.accepted_prediction_tokens > 50
    assert usage.rejected_prediction_tokens == 0
    assert rig.core.statistics().speculation["prediction"].accepted == (
        usage.accepted_prediction_tokens
    )
    assert events == events_of(Rig(), [request])


def test_a_wrong_prediction_is_told_of_and_costs_no_token() -> None:
    rig = Rig(speculation="auto")
    request = request_of("r", [9] * 20, 30, n=2, sampling=SEEDED)
    said = [token + 1 for token in said_by(rig.executor, request)]
    events_of(rig, [predicted(rig, request, said)])
    usage = rig.sink.usage("r")
    assert usage.completion_tokens == 60
    assert usage.accepted_prediction_tokens < usage.rejected_prediction_tokens


def test_switched_off_nobody_guesses() -> None:
    rig = Rig(speculation="off")
    request = request_of("r", [9] * 20, 64, sampling=SEEDED)
    events_of(rig, [predicted(rig, request, said_by(rig.executor, request))])
    assert rig.core.statistics().speculation == {}
    assert rig.sink.usage("r").accepted_prediction_tokens == 0


def test_two_tenants_are_never_told_what_the_other_said() -> None:
    """All that is proposed comes from the request's own prompt, output and prediction."""
    rig = Rig(speculation="auto")
    first = request_of("first", [9] * 20, 64, tenant="one", salt="one", sampling=SEEDED)
    events_of(rig, [first])
    drafted = rig.core.statistics().speculation
    second = request_of("second", [9] * 20, 64, tenant="two", salt="two", sampling=SEEDED)
    events_of(rig, [second])
    after = rig.core.statistics().speculation
    assert {name: tally.drafted for name, tally in after.items()} == {
        name: 2 * tally.drafted for name, tally in drafted.items()
    }
