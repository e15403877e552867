"""How many paraphrases are answered from the cache, and how many questions wrongly.

    python -m benchmarks.semantic PARAPHRASES.json TRUTHFULQA.csv
    python -m benchmarks.semantic PARAPHRASES.json TRUTHFULQA.csv --calibrate

PARAPHRASES is GPTCache's list of `origin` and `similar`, TRUTHFULQA a table with a column
`Question`. Both are split in halves by a hash of the first text: one half the thresholds of
`policies.thresholds` and the words of `policies.english` come from (`--calibrate` prints it), the
other is what is told. A pair hits as in the gateway: its similarity reaches the threshold, and
`policies.slots` sees no difference.

The bounds are Clopper and Pearson's, one-sided at 95 %, and the upper one of two at 95 %.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.close_pairs import Pair, chinese, chinese_paraphrases, english, is_told, statements
from benchmarks.machine import about
from gateway.embedding import Embed, bundled
from policies.reading import Reading, reading_of
from policies.slots import difference
from policies.thresholds import threshold

_THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
_LEAST_LIKE = 0.5
"""Distinct questions that are less similar are not read: no threshold is as low."""


class Judged(msgspec.Struct, frozen=True):
    """One pair. similar: reaches the threshold; same: nothing seen that differs"""

    similarity: float
    similar: bool
    same: bool

    @property
    def hit(self) -> bool:
        return self.similar and self.same


def judge(one: str, other: str, embed: Embed) -> Judged:
    similarity = float(embed(one) @ embed(other))
    a, b = reading_of(one), reading_of(other)
    same = a is not None and b is not None and difference(a, b) is None
    return Judged(similarity, similarity >= threshold(other, answers=True), same)


def upper_bound(wrong: int, count: int, *, confidence: float) -> float:
    """Of the rate of which `wrong` of `count` were seen: the rate at which no more than that are
    seen with a chance of 1 - confidence (Clopper and Pearson, Biometrika 26, 1934)."""
    low, high = wrong / count, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high)
            if _chance_of_at_most(wrong, count, middle) > 1 - confidence
            else (low, middle)
        )
    return high


def _chance_of_at_most(most: int, count: int, rate: float) -> float:
    if rate >= 1:
        return float(most >= count)
    logs = (
        math.lgamma(count + 1)
        - math.lgamma(n + 1)
        - math.lgamma(count - n + 1)
        + (n * math.log(rate) if n else 0.0)
        + (count - n) * math.log1p(-rate)
        for n in range(most + 1)
    )
    return math.fsum(map(math.exp, logs))


def distinct(questions: Sequence[str], embed: Embed) -> list[Judged]:
    """Every question against every other one, those that are not even alike left out."""
    vectors = np.stack([embed(question) for question in questions])
    readings = [reading_of(question) for question in questions]
    similarities = vectors @ vectors.T
    found = []
    for i, j in np.argwhere(np.triu(similarities, 1) >= _LEAST_LIKE).tolist():
        similarity = float(similarities[i, j])
        similar = similarity >= threshold(questions[j], answers=True)
        found.append(Judged(similarity, similar, _same(readings[i], readings[j])))
    return found


def _same(one: Reading | None, other: Reading | None) -> bool:
    return one is not None and other is not None and difference(one, other) is None


def _row(name: str, judged: Sequence[Judged], *, wrong: bool, count: int | None = None) -> None:
    """A line of the table; `count` of all pairs, where not all were judged."""
    count = count or len(judged)
    hits = sum(each.hit for each in judged)
    alone = sum(each.similar for each in judged)
    bounds = ""
    if wrong:
        one, two = (upper_bound(hits, count, confidence=c) for c in (0.95, 0.975))
        bounds = f"{one:.2%} | {two:.2%}"
    middle = float(np.median([each.similarity for each in judged])) if judged else math.nan
    print(
        f"| {name} | {count:,} | {middle:.2f} | {alone / count:.1%} | {hits:,} | "
        f"{hits / count:.1%} | {bounds or '| '} |"
    )


def _table(
    paraphrases: list[tuple[str, str]],
    questions: list[str],
    embed: Embed,
    chosen: Callable[[str], bool],
    *,
    shown: bool,
) -> bool:
    """Prints it. Is every bound kept?"""
    print("| pairs | count | similarity | by it alone | hits | share | 95 % bound | of two |")
    print("|---|---|---|---|---|---|---|---|")
    english_pairs = [p for p in paraphrases if chosen(p[0])]
    chinese_pairs = [p for p in chinese_paraphrases() if chosen(p[0])]
    right = [judge(*pair, embed) for pair in english_pairs]
    _row("the same: paraphrases, English", right, wrong=False)
    polite = [judge(*pair, embed) for pair in chinese_pairs]
    _row("the same: Chinese, of our making", polite, wrong=False)
    said = list(dict.fromkeys(one for one, _ in paraphrases))
    pairs = [
        pair
        for pair in [*english(questions), *statements(said), *chinese()]
        if chosen(pair.one) and pair.one != pair.other
    ]
    judged = [(pair, judge(pair.one, pair.other, embed)) for pair in pairs]
    for language, kind in sorted({(pair.language, pair.kind) for pair in pairs}):
        _row(f"{language}: {kind}", _of(judged, language, kind), wrong=True)
    for language in ("en", "zh"):
        _row(f"**questions changed, {language}**", _of(judged, language), wrong=True)
    asked = [_of(judged, language) for language in ("en", "zh")]
    mine = [question for question in questions if chosen(question)]
    apart = distinct(mine, embed)
    _row("distinct questions", apart, wrong=True, count=len(mine) * (len(mine) - 1) // 2)
    _calibration({"latin": right, "han": polite}, {"latin": asked[0], "han": asked[1]})
    if shown:
        for pair, each in judged:
            if each.hit:
                print(f"wrong ({pair.kind}): {pair.one} | {pair.other}")
    kept = all(
        upper_bound(sum(each.hit for each in some), len(some), confidence=0.95) <= 0.005
        for some in asked
    )
    return kept and sum(each.hit for each in right) >= 0.3 * len(right)


def _calibration(right: dict[str, Sequence[Judged]], changed: dict[str, Sequence[Judged]]) -> None:
    """For each script: what lower and higher thresholds would do, the words read all the same."""
    print("\n| script | threshold | hits | wrong | 95 % bound |\n|---|---|---|---|---|")
    for script, least in product(right, _THRESHOLDS):
        hits, wrong = (
            sum(each.same and each.similarity >= least for each in judged)
            for judged in (right[script], changed[script])
        )
        bound = upper_bound(wrong, len(changed[script]), confidence=0.95)
        share = hits / len(right[script])
        print(f"| {script} | {least:.2f} | {share:.1%} | {wrong} | {bound:.2%} |")


def _of(
    judged: Iterable[tuple[Pair, Judged]], language: str, kind: str | None = None
) -> list[Judged]:
    """Of one kind; without, of all that are questions."""
    return [
        each
        for pair, each in judged
        if pair.language == language
        and (pair.kind == kind if kind else not pair.kind.endswith("statement"))
    ]


def _time(questions: Sequence[str], embed: Embed) -> None:
    """Of what a request costs besides looking its answer up."""
    from gateway.cache.neighbours import Entry, Neighbours

    def each_us(work: Callable[[str], object]) -> float:
        times_us = []
        for question in questions:
            begun_s = time.perf_counter()
            work(question)
            times_us.append((time.perf_counter() - begun_s) * 1e6)
        return float(np.median(times_us))

    neighbours = Neighbours()
    random = np.random.default_rng(1)
    for place in range(10_000):
        vector = random.standard_normal(256).astype(np.float32)
        vector /= np.linalg.norm(vector)
        entry = Entry(b"p", "o", place.to_bytes(32, "big"), None)
        neighbours.add(entry, vector, ttl_s=60, max_entries=10_000)
    vectors = {question: embed(question) for question in questions}
    searched_us = each_us(lambda question: list(neighbours.near(b"p", vectors[question], 0.7)))
    print(
        f"\nembedding {each_us(embed):.0f} us, reading {each_us(reading_of):.0f} us a question; "
        f"search among 10,000 {searched_us:.0f} us"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paraphrases", type=Path)
    parser.add_argument("truthfulqa", type=Path)
    parser.add_argument("--calibrate", action="store_true", help="the other half of all pairs")
    parser.add_argument("--show", action="store_true", help="each wrong hit")
    options = parser.parse_args(arguments)
    told = json.loads(options.paraphrases.read_text("utf-8"))
    paraphrases = [(pair["origin"], pair["similar"]) for pair in told]
    with options.truthfulqa.open(encoding="utf-8", newline="") as file:
        questions = [row["Question"] for row in csv.DictReader(file)]
    embed = bundled()
    print(f"semantic: {about()}\n")
    kept = _table(
        paraphrases,
        questions,
        embed,
        lambda text: is_told(text) != options.calibrate,
        shown=options.show,
    )
    _time(questions, embed)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
