"""What the quality benchmark makes of logits, checked on small cases and on the real model."""

from __future__ import annotations

import gzip
import itertools
import json
import math
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import quality
from benchmarks.configurations import ALL, REFERENCE, Configuration
from benchmarks.journal import Journal
from benchmarks.likelihood import Span, log_likelihoods
from benchmarks.multiple_choice import Item, groups, read_items, score_items
from benchmarks.paired import difference_interval, mcnemar, ratio_interval
from benchmarks.perplexity import Window, score_window, windows
from benchmarks.quality import Found, Work, accuracy_rows, compute, perplexity_rows, read_text
from engine.runner.base import BLOCK_TOKENS, Batch, ModelShape
from engine.text.tokenizer import Tokenizer
from engine.weights.gguf import GgufFile

VOCABULARY = 50


class Remembering:
    """Keeps tokens where K and V would be; the next token's odds follow from all before it."""

    shape: ModelShape

    def __init__(self, blocks: int = 64) -> None:
        self.memory = np.full(blocks * BLOCK_TOKENS, -1)
        self.rows: list[int] = []

    def allocate(self, num_blocks: int) -> None:
        self.memory = np.full(num_blocks * BLOCK_TOKENS, -1)

    def close(self) -> None:
        pass

    def logits(self, batch: Batch) -> Any:
        self.rows.append(len(batch.tokens))
        self.memory[batch.slots] = batch.tokens
        segments = np.searchsorted(batch.query_start, [s.row for s in batch.samples], "right") - 1
        found = np.empty((len(batch.samples), VOCABULARY), np.float32)
        for line, sample, segment in zip(found, batch.samples, segments, strict=True):
            past = np.arange(batch.positions[sample.row] + 1)
            slots = batch.block_table[segment][past // BLOCK_TOKENS] * BLOCK_TOKENS
            line[:] = odds(self.memory[slots + past % BLOCK_TOKENS].tolist())
        return found


def odds(past: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Logits that no other past has, and that differ from token to token."""
    return np.random.default_rng(past).normal(size=VOCABULARY) * 3


def expected(tokens: Sequence[int], first: int) -> float:
    """The log-likelihood of `tokens[first:]`, each given all before it."""
    total = 0.0
    for index in range(first, len(tokens)):
        logits = odds(tokens[:index])
        total += logits[tokens[index]] - math.log(np.exp(logits).sum())
    return total


def drawn(length: int, seed: int = 0) -> list[int]:
    return list(map(int, np.random.default_rng(seed).integers(VOCABULARY, size=length)))


def test_a_span_gives_the_tokens_it_was_asked_for() -> None:
    tokens = drawn(20)
    executor = Remembering()
    kept = Span(tokens, 0, 16, [3, 1], scored=17)
    assert [one.tolist() for one in log_likelihoods(executor, [kept])] == [[]]
    (found,) = log_likelihoods(executor, [Span(tokens, 16, 19, [3, 1], scored=17)])
    assert found.sum() == pytest.approx(expected(tokens, 17), abs=1e-5)


@given(length=st.integers(1, 90), size=st.integers(1, 40), data=st.data())
def test_windows_score_every_token_once(length: int, size: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, size))
    ids = list(range(length))
    found = windows(ids, size, stride)
    scored = [token for window in found for token in window.tokens[window.scored :]]
    unscored = set(range(0, length, size)) if stride == size else {0}
    assert scored == [token for token in ids if token not in unscored]
    assert all(len(window.tokens) <= size for window in found)
    assert sum(window.num_scored for window in found) == len(scored)


@pytest.mark.parametrize("stride", [0, 9])
def test_a_stride_that_skips_text_is_refused(stride: int) -> None:
    with pytest.raises(ValueError, match="from 1 to the window's 8"):
        windows(range(20), 8, stride)


@pytest.mark.parametrize(("length", "scored"), [(2, 1), (300, 1), (257, 1), (600, 550), (513, 200)])
def test_a_window_is_read_in_chunks_to_the_same_end(length: int, scored: int) -> None:
    tokens = drawn(length)
    executor = Remembering()
    (found,) = score_window(executor, Window(tokens, scored))
    assert found == pytest.approx(expected(tokens, scored), rel=1e-5)
    assert sum(executor.rows) == length - 1


def item(prompt: int, *answers: int, seed: int = 0) -> Item:
    """A prompt and answers of so many tokens."""
    beginning = drawn(prompt, seed)
    sequences = [beginning + drawn(count, seed + 1 + i) for i, count in enumerate(answers)]
    return Item(sequences, prompt, [1 + count for count in answers], 0)


def test_answers_share_their_questions_blocks_and_score_the_same() -> None:
    items = [item(40, 3, 9, 1), item(9, 20, 2, seed=10), item(33, 1, 1, 1, 1, seed=20)]
    executor = Remembering()
    found = score_items(executor, items)
    wanted = [[expected(one, each.scored) for one in each.sequences] for each in items]
    for line, right in zip(found, wanted, strict=True):
        assert line == pytest.approx(right, abs=1e-4)
    alone = sum(len(one) for each in items for one in each.sequences)
    assert executor.rows[0] == 32 + 0 + 32
    assert sum(executor.rows) < alone


def test_a_short_question_needs_one_step() -> None:
    executor = Remembering()
    assert len(score_items(executor, [item(5, 2, 3)])[0]) == 2
    assert len(executor.rows) == 1


def test_groups_keep_the_order_and_fit_a_step() -> None:
    items = [item(20 + 7 * number, 3, 4, 5, seed=number) for number in range(12)]
    found = list(groups(items, 80))
    assert list(itertools.chain(*found)) == items
    assert max(len(one) for one in found) > 1
    assert all(len(one) == 1 or sum(each.num_rows for each in one) <= 80 for one in found)
    assert list(groups([])) == []


def test_the_likeliest_answer_counts_and_the_likeliest_by_character() -> None:
    question = Item([[1, 2], [1, 3], [1, 4]], 1, [2, 20, 4], gold=1)
    assert not question.right([-3.0, -4.0, -5.0])
    assert question.right_by_character([-3.0, -4.0, -5.0])
    assert question.right([-9.0, -1.0, -2.0])


def test_an_interrupted_journal_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "made" / "journal"
    Journal(path).append([[1.5, -2.0], [3.0]])
    with path.open("a") as file:
        file.write("[4.0, 5")
    again = Journal(path)
    assert again.values == [[1.5, -2.0], [3.0]]
    again.append([[6.0]])
    assert Journal(path).values == [[1.5, -2.0], [3.0], [6.0]]


def test_a_ratio_that_is_the_same_in_every_window_has_a_narrow_interval() -> None:
    base = [-10.0, -400.0, -90.0]
    tokens = [10, 100, 30]
    other = [value - 0.01 * count for value, count in zip(base, tokens, strict=True)]
    assert ratio_interval(base, other, tokens) == pytest.approx([math.exp(0.01)] * 3)


def test_an_interval_holds_its_ratio_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    held = 0
    for seed in range(20):
        gains = random.normal(0.5, 3.0, size=60)
        _, low, high = ratio_interval([0.0] * 60, (-gains).tolist(), [100] * 60, seed)
        held += low <= math.exp(0.005) <= high
    assert 17 <= held <= 20


@pytest.mark.parametrize(
    ("base", "other", "wanted"),
    [
        ("1101", "1101", (0, 0, 1.0)),
        ("11110", "00000", (4, 0, 0.125)),
        ("0000000001", "1111111110", (1, 9, 22 / 1024)),
    ],
)
def test_mcnemar_is_the_exact_test(base: str, other: str, wanted: tuple[int, int, float]) -> None:
    assert mcnemar([c == "1" for c in base], [c == "1" for c in other]) == wanted


def test_the_difference_of_accuracies_has_its_paired_error() -> None:
    points, low, high = difference_interval(lost=10, gained=20, items=1000)
    assert points == pytest.approx(0.01)
    error = math.sqrt((30 / 1000 - 0.01**2) / 1000)
    assert (low, high) == pytest.approx((0.01 - 1.96 * error, 0.01 + 1.96 * error))


def test_rows_compare_each_with_the_reference() -> None:
    questions = [Item([[1, 2], [1, 3]], 1, [1, 1], gold) for gold in (0, 1, 0)]
    work = Work([Window([1] * 11, 1)] * 2, "w", questions, "i")
    found = {
        REFERENCE: Found([-10.0, -10.0], [[-1.0, -2.0]] * 3),
        ALL["cpu"]: Found([-10.1, -10.1], [[-1.0, -2.0], [-2.0, -1.0], [-2.0, -1.0]]),
    }
    base, cpu = perplexity_rows(found, work)
    assert (base["perplexity"], base["kv"]) == (2.7183, "float32")
    assert "over_reference_%" not in base
    assert (cpu["over_reference_%"], cpu["scored_tokens"]) == (1.005, 20)
    assert cpu["95_%_interval"] == "+1.005 to +1.005"
    rows = accuracy_rows(found, work)
    assert [row["metric"] for row in rows] == ["acc", "acc", "acc_norm", "acc_norm"]
    assert (rows[0]["right"], rows[1]["gained"], rows[1]["lost"]) == (2, 1, 1)


def test_text_may_be_compressed(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.txt", tmp_path / "a.txt.gz"
    plain.write_text("naïve 好")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_text(plain) == read_text(packed) == "naïve 好"


def test_configurations_have_journals_of_their_own() -> None:
    digests = {configuration.digest("f" * 64) for configuration in ALL.values()}
    assert len(digests) == len(ALL)
    assert REFERENCE.digest("0" * 64) != REFERENCE.digest("f" * 64)
    assert REFERENCE.digest("0" * 64) == Configuration("reference").digest("0" * 64)


def write_inputs(folder: Path) -> Namespace:
    text = folder / "text.txt"
    text.write_text("The sea was calm. " + "A lobster is a large animal of the sea. " * 8)
    questions = folder / "questions.jsonl"
    told = {
        "query": "Question: Which of these is an animal?",
        "choices": ["a lobster", "a stone", "water", "the colour green"],
        "gold": 0,
    }
    questions.write_text(f"{json.dumps(told)}\n" * 2)
    return Namespace(text=text, questions=questions, window=48, stride=24, tokens=None, items=None)


@pytest.mark.model
def test_questions_are_split_as_the_harness_splits_them(model_path: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(GgufFile.open(model_path).metadata)
    question = read_items(write_inputs(tmp_path).questions, tokenizer)[0]
    prompt = "Question: Which of these is an animal?\nAnswer:"
    assert tokenizer.decode(question.sequences[0][: question.scored]) == prompt
    assert tokenizer.decode(question.sequences[3][question.scored :]) == " the colour green"
    assert list(question.lengths) == [9, 7, 5, 16]


@pytest.mark.model
def test_the_executors_agree_on_the_real_model_and_are_asked_once(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quality, "cache_folder", lambda: tmp_path / "cache")
    arguments = write_inputs(tmp_path)
    work = quality.read_work(arguments, Tokenizer.from_gguf(GgufFile.open(model_path).metadata))
    several = (REFERENCE, ALL["cpu"], ALL["cpu-int8-kv"])
    found = {one: compute(one, work, model_path, "f" * 64, 1) for one in several}
    assert len(work.windows) > 2
    for row in perplexity_rows(found, work)[1:]:
        assert abs(float(str(row["over_reference_%"]))) < 5
    for one in several[1:]:
        assert np.allclose(found[one].items, found[REFERENCE].items, atol=1.0)
    assert found[REFERENCE].items[0] == found[REFERENCE].items[1]
    monkeypatch.delattr(Configuration, "open")
    assert compute(REFERENCE, work, model_path, "f" * 64, 1) == found[REFERENCE]
