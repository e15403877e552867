from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol.errors import ModelFileError
from engine.text.detokenizer import Detokenizer
from engine.text.tokenizer import Tokenizer

SPACE = "\u2581"
WORDS = "▁t he ▁the in ▁a er on ▁an re at ing ▁s en and ▁and th ▁th ell llo he▁ aa aaaa ▁▁".split()


def metadata_of(**changes: Any) -> dict[str, Any]:
    """Special tokens, all bytes, letters, and words that are likelier the earlier they stand."""
    specials = ["<unk>", "<s>", "</s>", "<|user|>"]
    raw = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = [SPACE, *map(chr, range(97, 123)), "é", "終"]
    tokens = [*specials, *raw, *WORDS, *letters]
    words = [-float(n) for n in range(len(WORDS))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 260 + words + [-100.0] * len(letters),
        "tokenizer.ggml.token_type": [2, 3, 3, 3, *[6] * 256, *[1] * (len(tokens) - 260)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
    } | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    return Tokenizer.from_gguf(metadata_of())


def reference(text: str, metadata: dict[str, Any]) -> list[int]:
    """SentencePiece's rule: join the neighbours that make the best-scored token, leftmost first."""
    tokens = metadata["tokenizer.ggml.tokens"]
    scores = metadata["tokenizer.ggml.scores"]
    normal = {token: i for i, token in enumerate(tokens) if i >= 260}
    parts = list((SPACE + text).replace(" ", SPACE)) if text else []
    while True:
        able = [
            (-scores[normal[a + b]], at)
            for at, (a, b) in enumerate(pairwise(parts))
            if a + b in normal
        ]
        if not able:
            break
        at = min(able)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    ids: list[int] = []
    for part in parts:
        ids += [normal[part]] if part in normal else [4 + byte for byte in part.encode()]
    return ids


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet="theinad sroglé終🧵\n", max_size=40))
def test_ids_follow_the_rule(small: Tokenizer, text: str) -> None:
    assert small.encode(text) == reference(text, metadata_of())


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=40))
def test_decoding_gives_the_text_back_after_its_added_space(small: Tokenizer, text: str) -> None:
    spaced = " " + text if text else ""
    ids = small.encode(text)
    assert small.decode(ids) == spaced.replace(SPACE, " ")
    detokenizer = Detokenizer(small)
    assert "".join(map(detokenizer.feed, ids)) + detokenizer.flush() == small.decode(ids)


def test_no_space_is_added_where_the_file_says_so() -> None:
    tokenizer = Tokenizer.from_gguf(metadata_of(add_space_prefix=False))
    assert tokenizer.decode(tokenizer.encode("the hat")) == "the hat"


def test_markers_in_text_are_plain_characters(small: Tokenizer) -> None:
    for marker in ("<s>", "</s>", "<|user|>", "<unk>"):
        ids = small.encode(marker)
        assert not {0, 1, 2, 3}.intersection(ids)
        assert small.decode(ids) == " " + marker


def test_text_that_spells_a_byte_token_is_text(small: Tokenizer) -> None:
    assert small.decode(small.encode("<0x41>")) == " <0x41>"


def test_completions_begin_with_the_begin_token(small: Tokenizer) -> None:
    assert small.encode_prompt("the") == [1, *small.encode("the")]


@pytest.mark.parametrize("run", ["a" * 200_000, " " * 200_000, "🧵" * 50_000])
def test_long_runs_take_less_than_a_second(small: Tokenizer, run: str) -> None:
    start = time.thread_time()
    small.encode(run)
    assert time.thread_time() - start < 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": [0.0]}, "one score for each token"),
        ({"unknown_token_id": None}, "names no unknown token"),
        ({"token_type": [6] + [1] * 310}, "'<unk>' is not of the form <0x00>"),
    ],
)
def test_damaged_files_are_refused(change: dict[str, Any], message: str) -> None:
    metadata = metadata_of(**change)
    if "token_type" in change:
        metadata["tokenizer.ggml.token_type"] = [6] + [1] * (
            len(metadata["tokenizer.ggml.tokens"]) - 1
        )
    with pytest.raises(ModelFileError, match=message):
        Tokenizer.from_gguf(metadata)
