"""Vocabularies: of the bundled model, and of bytes, which tests can compute in their heads."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.grammar.closing import Closer
from engine.grammar.vocabulary import Vocabulary
from engine.text.tokenizer import Tokenizer
from engine.weights.gguf import GgufFile
from tests.fakes.tokenizer import VOCAB_SIZE, byte_tokenizer


@pytest.fixture(scope="session")
def tokenizer(model_path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(GgufFile.open(model_path).metadata)


@pytest.fixture(scope="session")
def closer(tokenizer: Tokenizer) -> Closer:
    return Closer(Vocabulary(tokenizer, tokenizer.vocab_size))


@pytest.fixture(scope="session")
def byte_closer() -> Closer:
    return Closer(Vocabulary(byte_tokenizer(), VOCAB_SIZE))
