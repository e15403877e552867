"""Each pattern cuts as the models' own does, with Hugging Face's regex engine as the judge."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from engine.protocol.errors import ModelFileError
from engine.text.byte_bpe import _LETTERS
from engine.text.pretokenizers import pattern_of
from engine.text.tokenizer import Tokenizer
from tests.engine.text.conftest import byte_level_oracle
from tests.engine.text.test_tokenizer import AWKWARD

# As the models' tokenizer.json spell them.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
    r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
ORIGINALS = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-bpe": _LLAMA3,
    "qwen2": _LLAMA3.replace("{1,3}", ""),
    "tekken": _CASED % ("", "", ""),
    "gpt-4o": _CASED % (_CONTRACTION, _CONTRACTION, "{1,3}"),
}
Pair = tuple[Tokenizer, tokenizers.Tokenizer]


@pytest.fixture(scope="module")
def pairs(metadata: Mapping[str, Any]) -> dict[str, Pair]:
    """The bundled vocabulary under each pattern: ours, and Hugging Face's."""
    return {
        name: (
            Tokenizer.from_gguf({**metadata, "tokenizer.ggml.pre": name}),
            byte_level_oracle(
                metadata,
                pre_tokenizers.Sequence(
                    [
                        pre_tokenizers.Split(Regex(original), "isolated"),
                        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                    ]
                ),
            ),
        )
        for name, original in ORIGINALS.items()
    }


@pytest.mark.parametrize("name", ORIGINALS)
def test_awkward_texts_are_cut_alike(pairs: dict[str, Pair], name: str) -> None:
    ours, oracle = pairs[name]
    spaces = [f"a{space * size}{after}" for space in (" ", "\n", "\t ") for size in (255, 256, 513)
              for after in ("", "x", "1", "\n", "!")]  # fmt: skip
    for text in AWKWARD + spaces:
        assert ours.encode(text) == oracle.encode(text).ids, (name, text)


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(sorted(ORIGINALS)),
    text=st.text(max_size=50) | st.text(alphabet="aB'sLl 1\n\r\t/.é", max_size=50),
)
def test_any_text_is_cut_alike(pairs: dict[str, Pair], name: str, text: str) -> None:
    ours, oracle = pairs[name]
    assert ours.encode(text) == oracle.encode(text).ids


@pytest.mark.parametrize("name", ORIGINALS)
def test_real_text_is_cut_alike(
    pairs: dict[str, Pair], shared_data: Callable[[str], Path], name: str
) -> None:
    ours, oracle = pairs[name]
    lines = shared_data("mt_bench_101").joinpath("mtbench101.jsonl").read_text(encoding="utf-8")
    for text in (lines[:100_000], shared_data("../article.zh.txt").read_text(encoding="utf-8")):
        assert ours.encode(text) == oracle.encode(text).ids


@pytest.mark.parametrize("name", [*ORIGINALS, "smollm"])
def test_a_million_spaces_do_not_overflow(metadata: Mapping[str, Any], name: str) -> None:
    tokenizer = Tokenizer.from_gguf({**metadata, "tokenizer.ggml.pre": name})
    text = " " * 1_000_001 + "x"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ModelFileError, match=r"'klingon' is not supported .*llama-bpe.*smollm"):
        pattern_of("klingon")


def test_gpt2_gives_the_published_ids(shared_data: Callable[[str], Path]) -> None:
    """OpenAI's ranks and expected ids, through a vocabulary as a GGUF would hold it."""
    folder = shared_data("tokenizers")
    tokenizer = Tokenizer.from_gguf(_gpt2(folder / "r50k_base.tiktoken"))
    plans = re.findall(
        r"EncodingName: r50k_base\nSample: (.*?)\nEncoded: (\[[^\n]*\])\n",
        folder.joinpath("TestPlans.txt").read_text(encoding="utf-8"),
        re.DOTALL,
    )
    assert len(plans) > 50
    for sample, encoded in plans:
        assert tokenizer.encode(sample) == json.loads(encoded), sample


def _gpt2(path: Path) -> dict[str, Any]:
    lines = [line.split() for line in path.read_text().splitlines()]
    ranks = {base64.b64decode(word): int(rank) for word, rank in lines}
    letters = {byte: chr(letter) for letter, byte in _LETTERS.items()}

    def written(word: bytes) -> str:
        return "".join(letters.get(byte, chr(byte)) for byte in word)

    in_order = sorted(ranks, key=ranks.__getitem__)
    merges = [halves for word in in_order if len(word) > 1 for halves in [_halves(word, ranks)]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [written(word) for word in in_order],
        "tokenizer.ggml.merges": [f"{written(left)} {written(right)}" for left, right in merges],
    }


def _halves(word: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The last merge of a word: merge by rank until two parts are left."""
    parts = [bytes([byte]) for byte in word]
    while len(parts) > 2:
        joined = [ranks.get(a + b, len(ranks)) for a, b in pairwise(parts)]
        at = joined.index(min(joined))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]
