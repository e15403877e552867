"""How byte-level BPE vocabularies cut text before merging: `tokenizer.ggml.pre` to a pattern.

The patterns are those of the models' own tokenizer.json, written for tiktoken (Rust's
`fancy_regex`), with two changes that leave the pieces as they are:

Splits that Hugging Face makes in sequence are one alternation here. Where single digits are
split off first, a digit ends the text for the pattern that follows, so that the white space
before it is not divided.

`\\s+(?!\\S)`, "white space up to the last one before a word", remembers one state for each
character and fails with a stack overflow at a million spaces. `_all_but_last` takes 256 at a
time and forgets them, which leaves 256 to step back through.
"""

from __future__ import annotations

from engine.protocol.errors import ModelFileError


def _all_but_last(word: str) -> str:
    """`\\s+(?!word)`, in a bounded stack. `word` is one character class."""
    return rf"(?=\s(?!{word}))(?>(?:\s{{256}}(?=\s))*)\s*(?!{word})"


_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = _all_but_last(r"\S") + r"|\s+"
_LINES = r"\s*[\r\n]+|" + _SPACES
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

_GPT2_LETTERS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|"
_GPT2_SYMBOLS = r" ?[^\s\p{L}\p{N}]+|"
_LLAMA3_WORDS = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
_SYMBOLS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|"

GPT2 = _GPT2_LETTERS + r" ?\p{N}+|" + _GPT2_SYMBOLS + _SPACES
DIGITS_GPT2 = r"\p{N}|" + _GPT2_LETTERS + _GPT2_SYMBOLS + _all_but_last(r"[^\s\p{N}]") + r"|\s+"
LLAMA3 = _LLAMA3_WORDS + "{1,3}" + _SYMBOLS + _LINES
QWEN2 = _LLAMA3_WORDS + _SYMBOLS + _LINES
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _LINES
)
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}?|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _LINES
)

_NAMES = {
    GPT2: "gpt-2 phi-2 mpt olmo jais trillion granite-docling",
    DIGITS_GPT2: "smollm starcoder refact command-r codeshell exaone minerva-7b",
    LLAMA3: "llama-bpe llama3 llama-v3 falcon3 pixtral dbrx smaug-bpe",
    QWEN2: "qwen2 deepseek-r1-qwen stablelm2 hunyuan",
    TEKKEN: "tekken",
    GPT4O: "gpt-4o llama4",
}
_PATTERNS = {name: pattern for pattern, names in _NAMES.items() for name in names.split()}


def pattern_of(name: str) -> str:
    """The pattern of `tokenizer.ggml.pre`. Raises `ModelFileError` for one that is not known."""
    if name not in _PATTERNS:
        raise ModelFileError(
            f"The tokenizer's pre-tokenizer {name!r} is not supported (known are "
            f"{', '.join(sorted(_PATTERNS))}). Use a model with one of those."
        )
    return _PATTERNS[name]
