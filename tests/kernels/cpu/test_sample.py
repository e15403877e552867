"""Native sampling chooses what engine.sampling chooses, whatever the logits and parameters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.protocol.sampling import Sampling
from engine.runner.base import SampleRow
from engine.runner.cpu import sample_parameters
from engine.sampling.sampler import sample
from kernels.cpu.binding import StepResult
from tests.kernels.cpu.chosen_logits import chosen_logits, step

VOCAB = 37  # no multiple of 16
IDS = st.integers(0, VOCAB - 1)

PARAMETERS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 1e-6, 1e-4, 0.2, 0.7, 1.0, 1.7, 100.0]),
    top_k=st.sampled_from([-1, 0, 1, 2, 5, 36, 37, 1000]),
    top_p=st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.999, 1.0]) | st.floats(0.01, 1.0),
    min_p=st.sampled_from([0.0, 1e-9, 0.3, 1.0]) | st.floats(0.0, 1.0),
    presence_penalty=st.sampled_from([0.0, 0.0, -2.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.0, -0.3, 2.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1e-30, 0.1, 1.3, 100.0]),
    logit_bias=st.dictionaries(IDS, st.sampled_from([-100.0, -1.5, 3.0, 100.0]), max_size=4),
    allowed_token_ids=st.none() | st.lists(IDS, min_size=1, max_size=9),
    bad_token_ids=st.lists(IDS, max_size=9),
    min_tokens=st.integers(0, 4),
    logprobs=st.none() | st.integers(0, 20),
)
LOGITS = st.lists(
    st.floats(-30, 30) | st.sampled_from([0.0, 1.0, 1.0, 5.0, -1e4, 1e6]),
    min_size=VOCAB,
    max_size=VOCAB,
)
WORDS = st.sampled_from([0, 2**32 - 1]) | st.integers(0, 2**32 - 1)
MASKS = st.none() | st.lists(WORDS, min_size=2, max_size=2).map(
    lambda words: np.array(words, np.uint32)
)
BROKEN = st.dictionaries(
    IDS, st.sampled_from([np.nan, np.inf, -np.inf]), min_size=1, max_size=VOCAB
)


@st.composite
def sample_rows(draw: st.DrawFn, row: int) -> SampleRow:
    return SampleRow(
        row=row,
        sampling=draw(PARAMETERS),
        seed=draw(st.integers(0, 2**64 - 1)),
        position=draw(st.integers(0, 10_000)),
        prompt=np.array(draw(st.lists(IDS, max_size=6)), np.int32),
        output=np.array(draw(st.lists(IDS, max_size=6)), np.int32),
        end_ids=frozenset(draw(st.sets(IDS, max_size=3))),
        mask=draw(MASKS),
    )


def assert_as_the_engine(wanted: NDArray[np.float64], rows: list[SampleRow]) -> None:
    with chosen_logits(wanted) as model:
        assert_equal(step(model, len(rows), list(map(sample_parameters, rows))), rows)


def assert_equal(result: StepResult, rows: list[SampleRow]) -> None:
    """The same tokens and alternatives; logprobs but for the rounding of another exp."""
    for i, expected in enumerate(sample(result.logits, rows)):
        assert result.tokens[i] == expected.token
        count = result.alternatives[i]
        assert np.array_equal(result.top_ids[i, :count], expected.top_ids)
        np.testing.assert_allclose(result.logprobs[i], expected.logprob, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(
            result.top_logprobs[i, :count], expected.top_logprobs, rtol=1e-6, atol=1e-7
        )


@settings(max_examples=150, deadline=None)
@given(
    wanted=st.lists(LOGITS, min_size=2, max_size=2),
    rows=st.tuples(sample_rows(0), sample_rows(1)),
)
def test_generated_parameters(wanted: list[list[float]], rows: tuple[SampleRow, ...]) -> None:
    assert_as_the_engine(np.array(wanted), list(rows))


@settings(max_examples=80, deadline=None)
@given(values=LOGITS, broken=BROKEN, row=sample_rows(0))
def test_broken_logits(values: list[float], broken: dict[int, float], row: SampleRow) -> None:
    for token, value in broken.items():
        values[token] = value
    assert_as_the_engine(np.array([values]), [row])


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_nothing_but_broken_logits_leaves_no_token(value: float) -> None:
    with chosen_logits(np.full((1, VOCAB), value)) as model:
        row = SampleRow(0, Sampling(logprobs=3), 0, 0, *2 * (np.empty(0, np.int32),), frozenset())
        result = step(model, 1, [sample_parameters(row)])
    assert result.tokens.tolist() == [-1]
    assert result.alternatives.tolist() == [0]


LARGE_VOCAB = 20_011
LARGE = [
    Sampling(),
    Sampling(temperature=0.7, top_p=0.9),
    Sampling(temperature=1.3, top_k=50),
    Sampling(temperature=1.0, top_k=3000, top_p=0.95, min_p=0.02),
    Sampling(temperature=100.0, top_p=0.999),
    Sampling(temperature=2.0, top_p=0.3),
    Sampling(top_k=1000, logprobs=20),
    Sampling(min_p=1e-9, repetition_penalty=1.2, logprobs=0),
    Sampling(temperature=1.0, logit_bias={5: 4.0}, presence_penalty=1.0, logprobs=5),
    Sampling(temperature=0.0, logprobs=1),
]


@pytest.mark.parametrize("spread", [0.01, 1.0, 3.0, 12.0])
def test_a_large_vocabulary(spread: float, built: Path) -> None:
    """Nuclei of one token up to nearly all of them."""
    rng = np.random.default_rng(int(spread * 100))
    wanted = rng.normal(0, spread, (len(LARGE), LARGE_VOCAB))
    with chosen_logits(wanted, built=built, threads=2) as model:
        for seed in range(4):
            rows = [
                SampleRow(i, sampling, seed * 1000 + i, seed * 7919,
                          rng.integers(0, LARGE_VOCAB, 50).astype(np.int32),
                          rng.integers(0, LARGE_VOCAB, 30).astype(np.int32), frozenset({2}))
                for i, sampling in enumerate(LARGE)
            ]  # fmt: skip
            result = step(model, len(rows), list(map(sample_parameters, rows)))
            assert_equal(result, rows)


def test_equal_logits_are_won_by_the_lowest_id(built: Path) -> None:
    """Exactly k of them with top-k, the shortest run with top-p, by id in the alternatives."""
    with chosen_logits(np.ones((1, 1000)), built=built) as model:
        drawn: dict[str, set[int]] = {"top_k": set(), "top_p": set()}
        for seed in range(60):
            for name, sampling in (
                ("top_k", Sampling(top_k=3)),
                ("top_p", Sampling(top_p=0.003, logprobs=20)),
            ):
                row = SampleRow(
                    0, sampling, seed, 0, np.empty(0, np.int32), np.empty(0, np.int32), frozenset()
                )
                result = step(model, 1, [sample_parameters(row)])
                drawn[name].add(int(result.tokens[0]))
    assert drawn == {"top_k": {0, 1, 2}, "top_p": {0, 1, 2}}
    assert result.top_ids[0].tolist() == list(range(20))


def test_a_row_depends_neither_on_neighbours_nor_on_threads(built: Path) -> None:
    rng = np.random.default_rng(2)
    wanted: NDArray[np.float64] = rng.normal(0, 3, (6, 999))
    rows = [
        SampleRow(i, sampling, i, 5, *2 * (np.array([3, i], np.int32),), frozenset())
        for i, sampling in enumerate(LARGE[:6])
    ]
    outcomes: list[list[int]] = []
    for threads in (1, 2, 3):
        with chosen_logits(wanted, built=built, threads=threads) as model:
            outcomes.append(step(model, 6, list(map(sample_parameters, rows))).tokens.tolist())
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_the_logits_given_out_are_those_sampled_from(built: Path) -> None:
    wanted = np.random.default_rng(1).normal(0, 3, (3, 65))
    with chosen_logits(wanted, built=built) as model:
        logits = step(model, 3, None).logits
    np.testing.assert_allclose(logits, wanted, rtol=2e-3, atol=1e-3)
