"""What a text looks like, in any language."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.features import MAX_CHARS, NAMES, SCRIPTS, abridged, features, is_code, script_of


def of(text: str, name: str) -> float:
    return features(text)[NAMES.index(name)]


def log(count: float) -> float:
    return math.log1p(count)


def test_the_same_question_looks_the_same_with_spaces_and_without() -> None:
    english = "How many eggs do 3 hens lay in 7 days? Show 2 ways: a * b = c."
    chinese = "3只母鸡7天下几个蛋？请给出2种方法：a * b = c。"
    for name in ("digits", "operators", "questions", "lines", "code", "labels", "sentences"):
        assert of(english, name) == of(chinese, name), name
    assert (of(english, "unspaced"), of(english, "latin")) == (0.0, 1.0)
    assert of(chinese, "unspaced") > 0.8 > 0.2 > of(chinese, "latin") > 0


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [
        ("真的吗？ Really? هل؟ Ναι\u037e", "questions", 4),
        ("今天。明天！后天？", "sentences", 3),
        ("One. Two! Three? 3.14 v1.2", "sentences", 3),
        ("१२३ 123 １２３", "digits", 9),
        ("a + b ≤ c, \\frac{1}{2} ∑", "operators", 4),
        ("A. one\nB. two\n(3) three\n四、four\n- five\n1. six\nplain", "labels", 6),
        ("a\nb\nc", "lines", 2),
        ("中文字", "word_length", 1.0),
        ("four five", "word_length", 4.0),
    ],
)
def test_counts(text: str, name: str, count: float) -> None:
    assert of(text, name) == pytest.approx(log(count))


def test_shares() -> None:
    assert of("ABcd", "capitals") == 0.5
    assert of("ab,。", "punctuation") == 0.5
    assert of("Привет", "capitals") == pytest.approx(1 / 6)


def test_a_long_text_is_looked_at_from_both_ends() -> None:
    text = "开" * 5000 + "7" * 10 + "end"
    half = MAX_CHARS // 2
    assert abridged(text) == text[:half] + text[-half:]
    assert of(text, "digits") == log(10)
    assert features(text) == features(abridged(text))


@given(st.text(max_size=300))
def test_features_are_small_numbers_whatever_the_text(text: str) -> None:
    found = features(text)
    assert len(found) == len(NAMES)
    assert all(0 <= number <= 12 for number in found)


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("Hello", "latin"),
        ("Grüße, café", "latin"),
        ("你好 GPT", "han"),
        ("请用 Python 和 NumPy 写一个函数", "han"),
        ("What does 你好 mean in English?", "latin"),
        ("日本語は難しい漢字漢字漢字", "kana"),
        ("한국어", "hangul"),
        ("Привет мир", "cyrillic"),
        ("γειά", "greek"),
        ("مرحبا", "arabic"),
        ("שלום", "hebrew"),
        ("नमस्ते", "devanagari"),
        ("สวัสดี", "thai"),
        ("123 + 456?!", None),
        ("", None),
    ],
)
def test_the_script_is_that_of_most_words(text: str, script: str | None) -> None:
    assert script_of(text) == script
    assert script is None or script in SCRIPTS


@pytest.mark.parametrize(
    "text",
    [
        "```python\nprint(1)\n```",
        "解释这段代码：\n~~~\nx = 1\n~~~",
        "What does this do?\nfor (int i = 0; i < n; i++) {\n  sum += i;\n}",
        "def f(x):\n    return g(x)\nclass A(B):\n    pass",
    ],
)
def test_code_is_code(text: str) -> None:
    assert is_code(text)


@pytest.mark.parametrize(
    "text",
    ["What is code?", "用 C++ 写什么好？", "For all x; we return.", "Dear all;\nsee below.", ""],
)
def test_prose_is_none(text: str) -> None:
    assert not is_code(text)
