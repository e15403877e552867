"""Tokens counted without a tokenizer: what a policy's cuts rest on."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.tokenizer import Tokenizer
from engine.weights.gguf import GgufFile
from policies.counting import (
    _CLASSES,
    IMAGE_TOKENS,
    MESSAGE_TOKENS,
    VERSION,
    json_tokens,
    message_tokens,
    text_tokens,
)

SAMPLES = {
    "English": "The capital of France is Paris, which has been its largest city for centuries. "
    * 4,
    "Chinese": "大模型推理的成本主要来自显存占用和解码阶段的逐个生成。我们可以减少不必要的输出。"
    * 4,
    "Japanese": "東京は日本の首都であり、世界最大の都市圏の一つです。人口は約千四百万人です。" * 4,
    "Korean": "서울은 대한민국의 수도이며 인구는 약 구백만 명이다. 한강이 도시를 가로지른다." * 4,
    "Russian": "Москва является столицей России и крупнейшим городом страны по населению. " * 4,
    "Arabic": "القاهرة هي عاصمة جمهورية مصر العربية وأكبر مدنها من حيث السكان والمساحة. " * 4,
    "Hindi": "दिल्ली भारत की राजधानी है और यह यमुना नदी के किनारे स्थित है। " * 4,
    "German": "Größere Änderungen müssen rechtzeitig angekündigt werden, damit Zeit bleibt. " * 4,
    "code": "def add(left: int, right: int) -> int:\n    return left + right  # both are given\n"
    * 4,
    "JSON": '{"flight": "HAT136", "prices": {"economy": 152, "business": 481}, "seats": 12}' * 4,
    "numbers": "2024-05-15 15:00:00 3.14159 299792458 " * 8,
}
COUNTS = {
    "English": 70,
    "Chinese": 295,
    "Japanese": 272,
    "Korean": 362,
    "Russian": 243,
    "Arabic": 272,
    "Hindi": 315,
    "German": 116,
    "code": 75,
    "JSON": 157,
    "numbers": 339,
}


@pytest.fixture(scope="module")
def tokenizer(model_path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(GgufFile.open(model_path).metadata)


@pytest.mark.parametrize("language", SAMPLES)
def test_near_what_a_tokenizer_counts_in_any_language(tokenizer: Tokenizer, language: str) -> None:
    text = SAMPLES[language]
    assert text_tokens(text) == pytest.approx(len(tokenizer.encode(text)), rel=0.3)


def test_near_what_a_tokenizer_counts_of_real_agents(
    tokenizer: Tokenizer, shared_data: Callable[[str], Path]
) -> None:
    runs = json.loads(gzip.decompress(_runs(shared_data).read_bytes()))
    texts = [message["content"] or "" for run in runs[::10] for message in run["traj"]]
    counted, exact = sum(map(text_tokens, texts)), sum(len(tokenizer.encode(t)) for t in texts)
    assert counted == pytest.approx(exact, rel=0.05)


def _runs(shared_data: Callable[[str], Path]) -> Path:
    return shared_data("tau_bench/gpt-4o-airline-even.json.gz")


def test_every_byte_is_weighed_once() -> None:
    members = b"".join(each for each, _ in _CLASSES)
    assert sorted(members) == list(range(256))


@settings(deadline=None)
@given(st.text(), st.text())
def test_a_text_counts_what_its_parts_count(left: str, right: str) -> None:
    """Within the rounding of each: so a message that grows never counts less."""
    together = text_tokens(left + right)
    apart = text_tokens(left) + text_tokens(right)
    assert max(text_tokens(left), apart - 1) <= together <= apart


def test_the_version_is_the_one_of_these_counts() -> None:
    """Cuts follow from these counts, so that other counts need another `VERSION`."""
    counts = {language: text_tokens(text) for language, text in SAMPLES.items()}
    assert (VERSION, counts) == (1, COUNTS)


def test_messages_count_everything_that_a_template_prints() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "x" * 400}}
    said = {"role": "user", "content": "x" * 400}
    assert message_tokens({"role": "assistant", "content": None}) == MESSAGE_TOKENS
    assert message_tokens(said) == MESSAGE_TOKENS + 68
    assert message_tokens({"role": "assistant", "content": None, "tool_calls": [call]}) > 68
    assert message_tokens({"role": "assistant", "function_call": call["function"]}) > 68


def test_parts_count_by_what_they_are() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    text = {"type": "text", "text": "x" * 400}
    assert message_tokens({"role": "user", "content": [text, image]}) == (
        MESSAGE_TOKENS + 68 + IMAGE_TOKENS
    )


@pytest.mark.parametrize("value", ["\ud800", [[]]])
def test_what_no_template_prints_is_counted_all_the_same(value: Any) -> None:
    assert json_tokens([value]) >= 1


def test_deep_nesting_is_counted() -> None:
    nested: list[Any] = []
    for _ in range(600):
        nested = [nested]
    assert json_tokens(nested) >= math.floor(1200 * 0.59)
