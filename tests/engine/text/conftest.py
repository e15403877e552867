"""The bundled model's tokenizer, and Hugging Face's of the same vocabulary as its oracle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from engine.text.chat_template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from engine.weights.gguf import GgufFile


@pytest.fixture(scope="session")
def metadata(model_path: Path) -> Mapping[str, Any]:
    return GgufFile.open(model_path).metadata


@pytest.fixture(scope="session")
def tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(metadata)


@pytest.fixture(scope="session")
def template(metadata: Mapping[str, Any], tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate.from_gguf(metadata, tokenizer)


@pytest.fixture(scope="session")
def oracle(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """As the model's own tokenizer.json has it: digits one by one, then GPT-2's byte level."""
    return byte_level_oracle(
        metadata,
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        ),
    )


def byte_level_oracle(
    metadata: Mapping[str, Any], pre_tokenizer: pre_tokenizers.PreTokenizer
) -> tokenizers.Tokenizer:
    tokens = metadata["tokenizer.ggml.tokens"]
    oracle = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]],
            unk_token=tokens[metadata["tokenizer.ggml.unknown_token_id"]],
        )
    )
    oracle.pre_tokenizer = pre_tokenizer
    return oracle
