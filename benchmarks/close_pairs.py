"""Pairs of questions that are close and different: one thing in them was changed.

English ones are made of real questions (TruthfulQA's file, or any list), Chinese ones of templates
here. Whatever answers one of a pair with the other's answer is wrong.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from itertools import cycle, product

import msgspec

from policies.english import LIGHT, LIGHT_IN_STATEMENTS


class Pair(msgspec.Struct, frozen=True):
    """language: `en` or `zh`; kind: what was changed"""

    language: str
    kind: str
    one: str
    other: str

    @property
    def is_told(self) -> bool:
        """Is it in the half that results are told of? The other is for calibration."""
        return is_told(self.one)


def is_told(text: str) -> bool:
    return hashlib.blake2b(text.encode()).digest()[0] % 2 == 1


_NUMBERS = (
    (30, "thirty", 31, "thirty-one"),
    (12, "twelve", 20, "twenty"),
    (50, "fifty", 15, "fifteen"),
    (3, "three", 4, "four"),
    (100, "one hundred", 1000, "one thousand"),
)
_DENIED = {
    "is": "isn't", "are": "aren't", "do": "don't", "does": "doesn't", "did": "didn't",
    "can": "can't", "was": "wasn't", "were": "weren't", "should": "shouldn't", "will": "won't",
}  # fmt: skip
_OPPOSITES = {
    "most": "least", "more": "less", "best": "worst", "first": "last", "before": "after",
    "true": "false", "good": "bad", "all": "some", "always": "sometimes", "old": "young",
    "new": "old", "men": "women", "man": "woman", "day": "night", "high": "low", "can": "must",
    "long": "short", "large": "small", "legal": "illegal", "happen": "end", "healthy": "sick",
    "increase": "decrease", "rich": "poor", "with": "without", "into": "from", "when": "where",
    "who": "what", "why": "when", "how": "why", "is": "was", "do": "did", "you": "they",
}  # fmt: skip
_STATED = _OPPOSITES | {
    "input": "output", "before": "after", "create": "delete", "creates": "deletes", "load": "save",
    "enable": "disable", "enables": "disables", "download": "upload", "rows": "columns",
    "row": "column", "train": "test", "audio": "image", "image": "audio", "local": "remote",
    "add": "remove", "adds": "removes", "returns": "removes", "allows": "prevents", "all": "some",
    "specify": "remove", "specifies": "ignores", "provides": "needs", "used": "needed",
}  # fmt: skip


def english(questions: Sequence[str]) -> Iterator[Pair]:
    """Several of each question, one for each kind of change that it has room for."""
    names = sorted({name for question in questions for name in _names(question)})
    nouns = sorted({word for question in questions for word in _nouns(question)})
    other_names, other_nouns, numbers = cycle(names), cycle(nouns), cycle(_NUMBERS)
    for question in questions:
        figure, word, changed_figure, changed_word = next(numbers)
        limit = f"{question} Answer in {{}} words."
        yield Pair("en", "number", limit.format(figure), limit.format(changed_figure))
        yield Pair("en", "number word", limit.format(word), limit.format(changed_word))
        yield Pair("en", "number word", limit.format(figure), limit.format(changed_word))
        yield from _changes("negation", question, _DENIED)
        yield from _changes("opposite or asking word", question, _OPPOSITES)
        for name in _names(question)[:1]:
            instead = next(each for each in other_names if each != name)
            yield Pair("en", "name", question, _replaced(question, name, instead))
        for noun in _nouns(question)[-1:]:
            instead = next(each for each in other_nouns if each[:4] != noun[:4])
            yield Pair("en", "thing", question, _replaced(question, noun, instead))


def statements(texts: Sequence[str]) -> Iterator[Pair]:
    """Of texts that ask nothing, which may differ in more."""
    nouns = sorted({word for text in texts for word in _nouns(text)})
    names = sorted({name for text in texts for name in (*_names(text), *_code(text))})
    other_nouns, other_names = cycle(nouns), cycle(names)
    for text in texts:
        yield from _changes("negation in a statement", text, _DENIED)
        yield from _changes("opposite in a statement", text, _STATED)
        for name in (*_names(text), *_code(text))[:2]:
            instead = next(each for each in other_names if each != name)
            yield Pair("en", "name in a statement", text, _replaced(text, name, instead))
        for noun in _nouns(text)[1:8:3]:
            instead = next(each for each in other_nouns if each[:4] != noun[:4])
            yield Pair("en", "thing in a statement", text, _replaced(text, noun, instead))


def _code(text: str) -> list[str]:
    return re.findall(r"(?<=`)\w+(?=`)", text)


def _changes(kind: str, question: str, table: dict[str, str]) -> Iterator[Pair]:
    """The first word of the table that is in it."""
    for word, instead in table.items():
        changed = _replaced(question, word, instead)
        if changed != question:
            yield Pair("en", kind, question, changed)
            return


def _replaced(text: str, word: str, instead: str) -> str:
    """Once; a capital stays one."""

    def again(found: re.Match[str]) -> str:
        return instead.capitalize() if found[0][0].isupper() and instead.islower() else instead

    return re.sub(rf"\b{re.escape(word)}\b", again, text, count=1, flags=re.IGNORECASE)


def _names(question: str) -> list[str]:
    return re.findall(r"(?<=[a-z,] )[A-Z][a-z]{2,}", question)


def _nouns(question: str) -> list[str]:
    words = re.findall(r"\b[a-z]{5,}\b", question)
    return [word for word in words if word not in LIGHT | LIGHT_IN_STATEMENTS]


_PLACES = "北京 上海 广州 深圳 成都 杭州 武汉 南京".split()
_THINGS = "护照 驾照 身份证 信用卡 医保卡 居住证".split()
_PEOPLE = "李白 杜甫 苏轼 鲁迅 老舍 巴金".split()
_COUNTED = (("三十", "三十一"), ("30", "31"), ("两", "三"), ("30", "十三"), ("五百", "五千"))
_ABOUT = (
    "在{}怎么办理{}？",
    "{}的{}多少钱？",
    "{}办{}需要什么材料？",
    "为什么{}的{}办得慢？",
    "{}哪里可以补办{}？",
)
_WHO = ("{}是什么时候出生的？", "{}写过哪些诗？", "请介绍一下{}的生平。", "{}的老师是谁？")
_WHEN = (
    "{}的{}{}天内能办好吗？",
    "{}的{}过期{}天怎么办？",
    "用{}字说明{}怎么办{}。",
)
_TURNED = (
    ("怎么开通", "怎么关闭"), ("可以", "不可以"), ("需要", "不需要"), ("有", "没有"),
    ("之前", "之后"), ("高", "低"), ("增加", "减少"), ("最贵", "最便宜"), ("必须", "不必"),
    ("怎么", "为什么"), ("已经", "还没"), ("上班", "下班"), ("买", "卖"), ("借", "还"),
    ("左边", "右边"), ("会", "不会"),
)  # fmt: skip
_TURNING = (
    "{place}的{thing}{turn}吗？",
    "我在{place}，{thing}{turn}的话要多久？",
    "{thing}在{place}{turn}是真的吗？",
)


def chinese() -> Iterator[Pair]:
    """Names, things, numbers and what is asked, one of them changed at a time."""
    for text, (one, other), thing in product(_ABOUT, _neighbours(_PLACES), _THINGS):
        yield Pair("zh", "name", text.format(one, thing), text.format(other, thing))
    for text, place, (one, other) in product(_ABOUT, _PLACES, _neighbours(_THINGS)):
        yield Pair("zh", "thing", text.format(place, one), text.format(place, other))
    for text, (one, other) in product(_WHO, _neighbours(_PEOPLE)):
        yield Pair("zh", "name", text.format(one), text.format(other))
    for text, place, thing, (one, other) in product(_WHEN[:2], _PLACES, _THINGS, _COUNTED):
        first, second = text.format(place, thing, one), text.format(place, thing, other)
        yield Pair("zh", "number", first, second)
    for text, place, thing, (one, other) in product(_TURNING, _PLACES, _THINGS, _TURNED):
        first, second = (text.format(place=place, thing=thing, turn=t) for t in (one, other))
        yield Pair("zh", "negation or opposite", first, second)


def _neighbours(words: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(words, [*words[1:], words[0]], strict=True))


_SAID = ("请问{}", "{}谢谢！", "请告诉我，{}", "我想知道{}", "麻烦问一下，{}")
_INSTEAD = (
    ("怎么", "如何"),
    ("多少钱", "什么价格"),
    ("什么时候", "何时"),
    ("哪里", "哪儿"),
    ("三十", "30"),
)


def chinese_paraphrases() -> Iterator[tuple[str, str]]:
    """The same question, more politely or with another word for a word."""
    asked = [text.format(place, thing) for text, place, thing in product(_ABOUT, _PLACES, _THINGS)]
    for question, said in zip(asked, cycle(_SAID), strict=False):
        yield question, said.format(question)
    for question in asked:
        for word, instead in _INSTEAD:
            if word in question:
                yield question, question.replace(word, instead)
