from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling.noise import exponential, mix_seed, noise_words

MASK = (1 << 64) - 1


def philox4x64(counter: list[int], key: list[int], rounds: int = 10) -> list[int]:
    """The generator as its paper draws it, on Python integers."""
    c, k = list(counter), list(key)
    for _ in range(rounds):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * c[0], 1 << 64)
        high1, low1 = divmod(0xCA5A826395121157 * c[2], 1 << 64)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B97F4A7C15) & MASK, (k[1] + 0xBB67AE8584CAA73B) & MASK]
    return c


# The known answers that the authors publish with Random123.
KNOWN = [
    (
        [0, 0, 0, 0],
        [0, 0],
        [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B],
    ),
    (
        [MASK, MASK, MASK, MASK],
        [MASK, MASK],
        [0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0],
    ),
    (
        [0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89],
        [0x452821E638D01377, 0xBE5466CF34E90C6C],
        [0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6],
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_the_written_generator_gives_the_published_answers(
    counter: list[int], key: list[int], expected: list[int]
) -> None:
    assert philox4x64(counter, key) == expected


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(-(2**63), 2**64 - 1),
    position=st.integers(0, 2**31),
    token=st.integers(0, 49_151),
)
def test_words_follow_the_documented_steps(seed: int, position: int, token: int) -> None:
    out = philox4x64([1 + token // 8, position, 0, 0], [seed & MASK, 0])
    expected = (out[(token % 8) // 2] >> (32 * (token % 2))) & 0xFFFFFFFF
    assert int(noise_words(seed, position, 49_152)[token]) == expected


def test_words_do_not_depend_on_the_size_of_the_vocabulary() -> None:
    whole = noise_words(3, 17, 1000)
    for size in (1, 2, 7, 8, 9, 501):
        assert np.array_equal(noise_words(3, 17, size), whole[:size])


def test_noise_is_finite_at_both_ends() -> None:
    ends = exponential(np.array([0, 2**32 - 1], np.uint32))
    assert ends[0] == pytest.approx(33 * math.log(2))
    assert ends[1] == pytest.approx(2.0**-33)


def test_noise_is_standard_exponential() -> None:
    noise = exponential(noise_words(11, 5, 200_000))
    assert noise.mean() == pytest.approx(1.0, abs=0.01)
    assert noise.var() == pytest.approx(1.0, abs=0.03)
    below_median = float((noise < math.log(2)).mean())
    assert below_median == pytest.approx(0.5, abs=0.005)


def test_neighbouring_positions_and_seeds_are_unrelated() -> None:
    rows = [exponential(noise_words(seed, position, 20_000)) for seed, position in
            ((1, 1), (1, 2), (2, 1), (2, 2))]  # fmt: skip
    for first, second in pairwise(rows):
        assert abs(float(np.corrcoef(first, second)[0, 1])) < 0.03


def test_mixed_seeds_are_64_bit_and_differ() -> None:
    mixed = {mix_seed(seed, choice) for seed in range(-50, 200) for choice in range(40)}
    assert len(mixed) == 250 * 40
    assert all(0 <= value <= MASK for value in mixed)
    assert mix_seed(5, 0) == mix_seed(5 + 2**64, 0)


def test_mixing_is_fixed_for_ever() -> None:
    """A seed written down today must give the same answer tomorrow."""
    assert [mix_seed(0, 0), mix_seed(42, 1), mix_seed(-1, 3)] == MIXED


MIXED = [12035550249420947055, 17532488217563185893, 209967342931450243]
