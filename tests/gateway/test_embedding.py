"""Texts as vectors: near where they are about the same, whatever their script."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.protocol.errors import SetupError
from gateway.embedding import MAX_CHARS, StaticEmbedding, bundled


def test_a_text_is_nearest_to_its_own_paraphrase() -> None:
    embed = bundled()
    texts = ["How do I reset my password?", "如何重置密码", "The weather in Paris"]
    others = ["What is the way to reset a password?", "我怎么重置密码？", "Is it raining in Paris?"]
    near = np.stack([embed(text) for text in texts]) @ np.stack([embed(text) for text in others]).T

    assert list(near.argmax(axis=1)) == [0, 1, 2]


def test_a_vector_has_length_one_and_no_text_is_zero() -> None:
    embed = bundled()

    assert embed("a\U0001f600b").shape == (embed.dimensions,)
    assert np.linalg.norm(embed("any")) == pytest.approx(1.0, abs=1e-6)
    assert not embed("").any()


def test_of_a_long_text_both_ends_are_read() -> None:
    embed = bundled()
    middle = "word " * MAX_CHARS

    assert np.array_equal(embed(middle), embed(middle + middle))
    assert not np.array_equal(embed("other " * 1000 + middle), embed(middle))
    assert not np.array_equal(embed(middle + "other " * 1000), embed(middle))


def test_what_is_missing_and_how_to_get_it_are_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"pip install 'fewer\[semantic\]'"):
        StaticEmbedding(tmp_path / "tokenizer.json", tmp_path / "weights.safetensors")
