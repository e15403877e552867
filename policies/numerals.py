"""Numbers that are written as words, in English and Chinese: 三十, thirty and 30 are one number."""

from __future__ import annotations

import re
from collections.abc import Sequence

_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()

SMALL = {word: value for value, word in enumerate(_UNITS)}
SMALL |= {word: 10 * place for place, word in enumerate(_TENS, start=2)}
LARGE = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}

_HAN_DIGITS = {char: value for value, char in enumerate("零一二三四五六七八九")}
_HAN_DIGITS |= {"〇": 0, "两": 2, "兩": 2, "壹": 1, "贰": 2, "叁": 3, "肆": 4, "伍": 5}
_HAN_DIGITS |= {"陆": 6, "柒": 7, "捌": 8, "玖": 9}
_HAN_TENS = {"十": 10, "拾": 10, "百": 100, "佰": 100, "千": 1000, "仟": 1000}
_HAN_MYRIADS = {"万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}

HAN = "".join([*_HAN_DIGITS, *_HAN_TENS, *_HAN_MYRIADS])
"""Every character that Chinese numbers are written with."""

_FULL_WIDTH = {ord("０") + digit: str(digit) for digit in range(10)}


def english(words: Sequence[str]) -> list[int]:
    """What number words in a row come to: `two hundred and five` is 205, `two three` is 2 and 3."""
    found: list[int] = []
    total, current = 0, -1
    for word in words:
        if word in SMALL:
            value = SMALL[word]
            room = 100 if value >= 10 else 10
            if current > 0 and (current % room or (room == 10 and 0 < current % 100 < 20)):
                found.append(total + current)
                total, current = 0, value
            else:
                current = max(current, 0) + value
        elif word == "hundred":
            current = max(current, 1) * 100
        elif word in LARGE:
            total, current = total + max(current, 1) * LARGE[word], 0
    if current >= 0:
        found.append(total + current)
    return found


def chinese(text: str) -> int:
    """What characters of `HAN` come to: 三十 is 30, 二〇二四 is 2024, 一万二千 is 12000."""
    if not any(char in _HAN_TENS or char in _HAN_MYRIADS for char in text):
        return int("".join(str(_HAN_DIGITS[char]) for char in text))
    total, section, digit = 0, 0, 0
    for char in text:
        if char in _HAN_DIGITS:
            digit = _HAN_DIGITS[char]
        elif char in _HAN_TENS:
            section += (digit or 1) * _HAN_TENS[char]
            digit = 0
        else:
            total = (total + section + digit or 1) * _HAN_MYRIADS[char]
            section = digit = 0
    return total + section + digit


def digits(text: str) -> str:
    """A number in figures, in the one way to write it: 1,000 is 1000, ３ is 3, 2.50 is 2.5."""
    plain = text.translate(_FULL_WIDTH)
    if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", plain):
        plain = plain.replace(",", "")
    if re.fullmatch(r"\d+\.\d*", plain):
        plain = plain.rstrip("0").rstrip(".")
    return plain.lstrip("0") or "0" if plain.isdecimal() else plain
