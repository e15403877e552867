from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol.sampling import Sampling
from engine.runner.base import Float32, SampleRow
from engine.sampling.sampler import NO_TOKEN, sample
from tests.engine.sampling.reference import reference_support, reference_token

NO_IDS = np.empty(0, np.int32)


def row_of(
    sampling: Sampling,
    *,
    seed: int = 1,
    position: int = 7,
    prompt: list[int] | None = None,
    output: list[int] | None = None,
    end_ids: frozenset[int] = frozenset(),
    mask: int | None = None,
) -> SampleRow:
    return SampleRow(
        row=0,
        sampling=sampling,
        seed=seed,
        position=position,
        prompt=np.array(prompt or [], np.int32),
        output=np.array(output or [], np.int32),
        end_ids=end_ids,
        mask=None if mask is None else np.array([mask], np.uint32),
    )


def logits_of(*values: float) -> Float32:
    return np.array([values], np.float32)


def random_logits(rows: int, vocab_size: int, seed: int = 0, scale: float = 3.0) -> Float32:
    generator = np.random.default_rng(seed)
    return (generator.standard_normal((rows, vocab_size)) * scale).astype(np.float32)


def token_of(logits: Float32, sampling: Sampling, **kwargs: Any) -> int:
    return sample(logits, [row_of(sampling, **kwargs)])[0].token


parameters = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 1e-4, 0.2, 0.7, 1.0, 2.0, 100.0]),
    top_k=st.sampled_from([-1, 0, 1, 2, 5, 40, 1000]),
    top_p=st.sampled_from([1e-4, 0.1, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    presence_penalty=st.sampled_from([-2.0, 0.0, 0.5, 2.0]),
    frequency_penalty=st.sampled_from([-2.0, 0.0, 0.3, 2.0]),
    repetition_penalty=st.sampled_from([0.1, 1.0, 1.3, 100.0]),
    logit_bias=st.dictionaries(st.integers(0, 29), st.sampled_from([-100.0, -1.5, 3.0, 100.0])),
    allowed_token_ids=st.none() | st.lists(st.integers(0, 29), min_size=1, unique=True),
    bad_token_ids=st.lists(st.integers(0, 29), max_size=20),
    min_tokens=st.integers(0, 4),
)


@settings(max_examples=300, deadline=None)
@given(
    sampling=parameters,
    values=st.lists(
        st.floats(-30, 30, width=32) | st.sampled_from([0.0, 1.0, 5.0]), min_size=30, max_size=30
    ),
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 10_000),
    prompt=st.lists(st.integers(0, 29), max_size=6),
    output=st.lists(st.integers(0, 29), max_size=6),
    mask=st.none() | st.integers(1, 2**30 - 1),
)
def test_equals_the_plain_reference(
    sampling: Sampling,
    values: list[float],
    seed: int,
    position: int,
    prompt: list[int],
    output: list[int],
    mask: int | None,
) -> None:
    logits = logits_of(*values)
    before = logits.copy()
    row = row_of(sampling, seed=seed, position=position, prompt=prompt, output=output,
                 end_ids=frozenset({3, 4}), mask=mask)  # fmt: skip
    assert sample(logits, [row])[0].token == reference_token(logits[0], row)
    assert np.array_equal(logits, before)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.7, top_p=0.9),
        Sampling(temperature=1.3, top_k=50),
        Sampling(temperature=1.0, top_k=200, top_p=0.95, min_p=0.02),
        Sampling(temperature=100.0, top_p=0.999),
        Sampling(temperature=1.0, logit_bias={5: 4.0}, repetition_penalty=1.2),
    ],
)
@pytest.mark.parametrize("scale", [0.01, 1.0, 4.0])
def test_equals_the_plain_reference_on_a_large_vocabulary(sampling: Sampling, scale: float) -> None:
    logits = random_logits(3, 20_001, seed=5, scale=scale)
    rows = [row_of(sampling, seed=seed, position=seed, prompt=[1, 2], output=[5, 5, 9])
            for seed in range(3)]  # fmt: skip
    tokens = [sampled.token for sampled in sample(logits, rows)]
    assert tokens == [reference_token(logits[i], rows[i]) for i in range(3)]


DISTRIBUTIONS = [
    Sampling(),
    Sampling(temperature=0.6),
    Sampling(temperature=1.8, top_k=6),
    Sampling(top_p=0.8),
    Sampling(min_p=0.15),
    Sampling(temperature=1.2, top_k=9, top_p=0.95, min_p=0.01),
    Sampling(logit_bias={0: 2.0, 3: -1.0}, presence_penalty=1.0, frequency_penalty=0.4),
    Sampling(bad_token_ids=[0, 1], repetition_penalty=1.5),
]


@pytest.mark.parametrize("sampling", DISTRIBUTIONS)
def test_drawn_tokens_follow_the_exact_distribution(sampling: Sampling) -> None:
    """Chi-square at p = 1e-4 on fixed seeds, over positions and over seeds."""
    draws = 6000
    logits = random_logits(1, 12, seed=8, scale=1.2)
    rows = [
        row_of(sampling, seed=900 + i % 3, position=i, prompt=[2], output=[3, 3, 5])
        for i in range(draws)
    ]
    support = reference_support(logits[0], rows[0])
    drawn = sample(np.repeat(logits, draws, axis=0), rows)
    counts = np.bincount([sampled.token for sampled in drawn], minlength=12)
    assert set(np.flatnonzero(counts)) <= set(support)
    expected = np.array([support.get(token, 0.0) * draws for token in range(12)])
    often = expected >= 5
    chi_square = float((((counts - expected) ** 2)[often] / expected[often]).sum())
    assert chi_square < _chi_square_limit(int(often.sum()) - 1)


def _chi_square_limit(freedom: int) -> float:
    """Wilson and Hilferty's approximation of the 1 - 1e-4 quantile."""
    if freedom <= 0:
        return 1e-9
    spread = 2 / (9 * freedom)
    return freedom * float((1 - spread + 3.719 * math.sqrt(spread)) ** 3)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    logits = random_logits(8, 5000, seed=2)
    kinds = [Sampling(), Sampling(temperature=0), Sampling(top_k=20), Sampling(top_p=0.9)]
    rows = [row_of(kinds[i % 4], seed=i, position=10 * i) for i in range(8)]
    together = [sampled.token for sampled in sample(logits, rows)]
    alone = [sample(logits[i : i + 1], [rows[i]])[0].token for i in range(8)]
    backwards = [s.token for s in sample(np.ascontiguousarray(logits[::-1]), rows[::-1])]
    assert together == alone == backwards[::-1]


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    logits = logits_of(1, 5, 5, 5)
    assert token_of(logits, Sampling(temperature=0)) == 1
    assert token_of(logits, Sampling(top_k=1)) == 1
    assert token_of(logits, Sampling(top_p=1e-4)) == 1


def test_top_k_keeps_exactly_k_of_equal_tokens() -> None:
    drawn = {token_of(logits_of(*[0.0] * 10), Sampling(top_k=3), seed=s) for s in range(300)}
    assert drawn == {0, 1, 2}


def test_top_p_keeps_the_token_that_reaches_the_mass() -> None:
    logits = logits_of(*np.log([0.5, 0.3, 0.15, 0.05]))
    drawn = {token_of(logits, Sampling(top_p=0.75), seed=s) for s in range(300)}
    assert drawn == {0, 1}


def test_masks_come_before_everything() -> None:
    logits = logits_of(9, 5, 1, 0)
    assert token_of(logits, Sampling(temperature=0, allowed_token_ids=[2, 3])) == 2
    assert token_of(logits, Sampling(temperature=0, bad_token_ids=[0])) == 1
    biased = Sampling(temperature=0, bad_token_ids=[0], logit_bias={0: 100.0})
    assert token_of(logits, biased) == 1


def test_what_a_grammar_masks_no_bias_brings_back() -> None:
    logits = logits_of(9.0, 5.0, 1.0)
    biased = Sampling(temperature=0, logit_bias={0: 100.0}, logprobs=1)
    (sampled,) = sample(logits, [row_of(biased, mask=0b110)])
    assert sampled.token == 1
    assert sampled.top_ids.tolist() == [0]  # logprobs are raw
    assert token_of(logits, biased, mask=0) == NO_TOKEN


def test_end_tokens_are_masked_until_min_tokens() -> None:
    logits = logits_of(9, 5, 1)
    sampling = Sampling(temperature=0, min_tokens=2)
    ends = frozenset({0})
    assert token_of(logits, sampling, output=[1], end_ids=ends) == 1
    assert token_of(logits, sampling, output=[1, 1], end_ids=ends) == 0


def test_nothing_left_gives_no_token() -> None:
    logits = logits_of(1, 2)
    assert token_of(logits, Sampling(bad_token_ids=[0, 1])) == NO_TOKEN
    only_end = Sampling(allowed_token_ids=[0], min_tokens=1, logprobs=2)
    sampled = sample(logits, [row_of(only_end, end_ids=frozenset({0}))])[0]
    assert sampled.token == NO_TOKEN
    assert math.isnan(sampled.logprob)


def test_penalties_follow_their_formulas() -> None:
    logits = logits_of(4.0, 3.9, -1.0)
    assert token_of(logits, Sampling(temperature=0, repetition_penalty=1.1), prompt=[0]) == 1
    assert token_of(logits, Sampling(temperature=0, presence_penalty=0.2), prompt=[0]) == 0
    assert token_of(logits, Sampling(temperature=0, presence_penalty=0.2), output=[0]) == 1
    twice = Sampling(temperature=0, frequency_penalty=0.06)
    assert token_of(logits, twice, output=[0]) == 0
    assert token_of(logits, twice, output=[0, 0]) == 1


TINY = [
    Sampling(temperature=temperature, top_p=top_p, presence_penalty=p, frequency_penalty=p)
    for temperature, top_p in ((1e-4, 1.0), (1e-6, 1.0), (1e-38, 1.0), (1.0, 1e-4), (1e-38, 1e-38))
    for p in (-2.0, 0.0, 2.0)
]


@pytest.mark.parametrize("sampling", TINY)
def test_tiny_temperature_and_top_p_equal_greedy_and_leave_neighbours_alone(
    sampling: Sampling,
) -> None:
    """B41."""
    logits = random_logits(2, 4096, seed=3, scale=10.0)
    greedy = Sampling(
        temperature=0,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
    )
    output = [int(token) for token in np.argsort(-logits[0])[:5]]
    neighbour = row_of(Sampling(temperature=0))
    drawn = sample(logits, [row_of(sampling, output=output), neighbour])
    assert drawn[0].token == token_of(logits[:1], greedy, output=output)
    assert drawn[1].token == int(logits[1].argmax())


@pytest.mark.parametrize("top_k", [-1, 0, 1, 5000, 10**9])
@pytest.mark.parametrize("min_p", [0.0, 1.0])
def test_every_legal_edge_gives_a_token(top_k: int, min_p: float) -> None:
    logits = random_logits(1, 4096, seed=4)
    token = token_of(logits, Sampling(temperature=100, top_k=top_k, min_p=min_p))
    assert 0 <= token < 4096
    if top_k == 1 or min_p == 1.0:
        assert token == int(logits.argmax())


@pytest.mark.parametrize("penalty", [1e-38, 1e-300, 100.0])
def test_an_extreme_repetition_penalty_never_breaks_the_row(penalty: float) -> None:
    logits = logits_of(1e4, -1e4, 3.0, 0.0)
    sampling = Sampling(repetition_penalty=penalty, logprobs=2, bad_token_ids=[3])
    sampled = sample(logits, [row_of(sampling, prompt=[0, 1, 2, 3])])[0]
    assert sampled.token in {0, 1, 2}
    assert math.isfinite(sampled.logprob)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_broken_logits_end_in_a_token_and_finite_logprobs(broken: float) -> None:
    """B41: never a NaN further on."""
    logits = logits_of(1.0, broken, 2.0, 0.5)
    for sampling in (Sampling(temperature=0, logprobs=4), Sampling(top_p=0.9, logprobs=4)):
        sampled = sample(logits, [row_of(sampling)])[0]
        assert sampled.token in ({1} if broken == math.inf else {0, 2, 3})
        assert math.isfinite(sampled.logprob)
        assert np.isfinite(sampled.top_logprobs).all()
    hopeless = logits_of(math.nan, -math.inf)
    assert token_of(hopeless, Sampling(logprobs=1)) == NO_TOKEN


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = random_logits(1, 100, seed=6)
    sampling = Sampling(temperature=0.1, top_k=1, logit_bias={7: 100.0}, logprobs=5)
    sampled = sample(logits, [row_of(sampling)])[0]
    exact = logits[0].astype(np.float64)
    exact -= math.log(float(np.exp(exact).sum()))
    assert sampled.token == 7
    assert sampled.logprob == pytest.approx(exact[7], abs=1e-9)
    assert list(sampled.top_ids) == list(np.argsort(-exact)[:5])
    assert sampled.top_logprobs == pytest.approx(exact[sampled.top_ids], abs=1e-6)


def test_logprobs_are_left_out_unless_asked_for() -> None:
    sampled = sample(logits_of(1, 2), [row_of(Sampling())])[0]
    assert math.isnan(sampled.logprob)
    assert len(sampled.top_ids) == len(sampled.top_logprobs) == 0
    none = sample(logits_of(1, 2), [row_of(Sampling(logprobs=0))])[0]
    assert math.isfinite(none.logprob)
    assert len(none.top_ids) == 0


def test_minus_infinity_never_leaves_as_a_logprob() -> None:
    """R29."""
    logits = logits_of(0.0, -math.inf, -math.inf)
    sampled = sample(logits, [row_of(Sampling(logprobs=3))])[0]
    assert list(sampled.top_ids) == [0, 1, 2]
    assert list(sampled.top_logprobs) == [0.0, -9999.0, -9999.0]


def test_the_same_seed_and_position_draw_the_same_token() -> None:
    logits = random_logits(1, 3000, seed=9, scale=0.5)
    draws = [token_of(logits, Sampling(), seed=4, position=i % 5) for i in range(20)]
    assert draws[:5] == draws[5:10] == draws[10:15] == draws[15:]
    assert len(set(draws[:5])) > 1
    assert len({token_of(logits, Sampling(), seed=s) for s in range(10)}) > 1


def test_no_rows_is_no_work() -> None:
    assert sample(np.empty((0, 10), np.float32), []) == []
