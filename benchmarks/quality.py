"""What the executors lose against the reference, in perplexity and in answers that are right.

    make bench-quality                                      everything: half an hour on one thread
    make bench-quality ARGS='--tokens 20000 --items 200'    the beginning of both sets: two minutes

Every configuration reads the same tokens, so differences are paired: by window of text, and by
question. What was computed is kept in the cache folder, by model, configuration and code, and
is not computed again: an interrupted run goes on, and several processes can share the work
with `--only`. The tables are Markdown; the rows are also written as JSON to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import multiple_choice
from benchmarks.bench import end_in_order, say
from benchmarks.configurations import ALL, REFERENCE, Configuration
from benchmarks.environments import REPOSITORY
from benchmarks.figures import Row
from benchmarks.journal import Journal
from benchmarks.likelihood import GivesLogits
from benchmarks.machine import about
from benchmarks.multiple_choice import Item
from benchmarks.paired import difference_interval, mcnemar, ratio_interval
from benchmarks.perplexity import Window, perplexity, score_window, windows
from benchmarks.report import RESULTS, about_line, save, section
from engine.text.tokenizer import Tokenizer
from engine.weights.gguf import GgufFile
from fewer import model_store
from fewer.paths import cache_folder

DATA = REPOSITORY.parent / "shared" / "data" / "quality"
SAY_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Work:
    """What every configuration is given. `windows` and `items` may be the beginning of a set;
    the keys stand for the whole, so that more of it can be done later."""

    windows: Sequence[Window]
    windows_key: str
    items: Sequence[Item]
    items_key: str


@dataclass(frozen=True, slots=True)
class Found:
    """windows: log-likelihood of each; items: of each answer of each"""

    windows: list[float]
    items: list[list[float]]


def read_text(path: Path) -> str:
    """Of a file that may be compressed with gzip."""
    raw = path.read_bytes()
    return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")


def read_work(arguments: argparse.Namespace, tokenizer: Tokenizer) -> Work:
    ids = tokenizer.encode(read_text(arguments.text))
    length, stride = arguments.window, arguments.stride or arguments.window
    moved = windows(ids, length, stride)
    items = multiple_choice.read_items(arguments.questions, tokenizer)
    return Work(
        moved if arguments.tokens is None else moved[: -(-arguments.tokens // stride)],
        _key("perplexity", length, stride, ids),
        items[: arguments.items],
        _key("choice", items),
    )


def compute(
    configuration: Configuration, work: Work, model: Path, digest: str, threads: int
) -> Found:
    """What the journals have not got yet. The model is loaded only where something is missing."""
    folder = cache_folder() / "quality"
    prefix = configuration.digest(digest)[:16]
    text = Journal(folder / f"{prefix}-{work.windows_key}.jsonl")
    choice = Journal(folder / f"{prefix}-{work.items_key}.jsonl")
    with ExitStack() as stack:
        missing = len(text.values) < len(work.windows) or len(choice.values) < len(work.items)
        if missing:
            longest = [len(one.tokens) for one in work.windows]
            longest += [len(one) for item in work.items for one in item.sequences]
            say(f"{configuration.name}: loading")
            executor = stack.enter_context(configuration.open(model, threads, max(longest)))
            _fill(executor, configuration.name, work, text, choice)
    return Found(
        [value for (value,) in text.values[: len(work.windows)]],
        choice.values[: len(work.items)],
    )


def _fill(executor: GivesLogits, name: str, work: Work, text: Journal, choice: Journal) -> None:
    said = 0.0
    for group in multiple_choice.groups(work.items[len(choice.values) :]):
        choice.append(multiple_choice.score_items(executor, group))
        said = _progress(said, f"{name}: {len(choice.values)} of {len(work.items)} questions")
    for window in work.windows[len(text.values) :]:
        text.append([score_window(executor, window)])
        said = _progress(said, f"{name}: {len(text.values)} of {len(work.windows)} windows")


def _progress(said: float, line: str) -> float:
    """Say `line`, unless another was said a moment ago; returns when the last one was."""
    if time.monotonic() - said < SAY_EVERY_S:
        return said
    say(line)
    return time.monotonic()


def perplexity_rows(found: dict[Configuration, Found], work: Work) -> list[Row]:
    tokens = [window.num_scored for window in work.windows]
    rows: list[Row] = []
    for configuration, one in found.items():
        row = _named(configuration)
        row |= {"windows": len(tokens), "scored_tokens": sum(tokens)}
        row["perplexity"] = round(perplexity(sum(one.windows), sum(tokens)), 4)
        if configuration != REFERENCE and REFERENCE in found:
            ratio, low, high = ratio_interval(found[REFERENCE].windows, one.windows, tokens)
            row["over_reference_%"] = round(100 * (ratio - 1), 3)
            row["95_%_interval"] = f"{100 * (low - 1):+.3f} to {100 * (high - 1):+.3f}"
        rows.append(row)
    return rows


def accuracy_rows(found: dict[Configuration, Found], work: Work) -> list[Row]:
    """`acc` and `acc_norm` of each configuration."""
    rows: list[Row] = []
    for metric, is_right in (("acc", Item.right), ("acc_norm", Item.right_by_character)):
        marks = {
            configuration: list(map(is_right, work.items, one.items))
            for configuration, one in found.items()
        }
        for configuration, right in marks.items():
            row = {"metric": metric} | _named(configuration) | {"questions": len(right)}
            row["right"] = sum(right)
            row["accuracy_%"] = round(100 * sum(right) / len(right), 2)
            if configuration != REFERENCE and REFERENCE in marks:
                row |= _against(marks[REFERENCE], right)
            rows.append(row)
    return rows


def _against(base: Sequence[bool], right: Sequence[bool]) -> Row:
    lost, gained, p = mcnemar(base, right)
    points, low, high = (100 * value for value in difference_interval(lost, gained, len(right)))
    return {
        "gained": gained,
        "lost": lost,
        "points": f"{points:+.2f} ({low:+.2f} to {high:+.2f})",
        "McNemar_p": round(p, 3),
    }


def _named(configuration: Configuration) -> Row:
    return {
        "executor": configuration.executor,
        "weights": configuration.weights,
        "kv": configuration.kv,
    }


def _key(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def main() -> int:
    end_in_order()
    arguments = _parser().parse_args()
    model = model_store.resolve(arguments.model)
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    work = read_work(arguments, Tokenizer.from_gguf(GgufFile.open(model).metadata))
    found = {
        ALL[name]: compute(ALL[name], work, model, digest, arguments.threads)
        for name in arguments.only or ALL
    }
    facts: dict[str, Any] = {"model": model.name, "sha256": digest, "text": arguments.text.name}
    facts |= {"window": arguments.window, "stride": arguments.stride or arguments.window}
    facts |= {"questions": arguments.questions.name, "threads": arguments.threads} | about()
    facts["versions"] |= {name: version(name) for name in ("torch", "gguf", "tiktoken")}
    text, choice = perplexity_rows(found, work), accuracy_rows(found, work)
    print(f"\n{about_line(facts)}\n")
    print(section("perplexity", "less is better; intervals over windows, paired", text))
    print(section("questions", "points of accuracy against the reference, paired", choice))
    content = {"about": facts, "perplexity": text, "questions": choice}
    print(f"Written to {save(arguments.name, content, arguments.results)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--model", default="smollm2-135m", help="name or GGUF file")
    parser.add_argument("--text", type=Path, default=DATA / "wikitext2-valid.txt.gz")
    parser.add_argument("--questions", type=Path, default=DATA / "arc_easy.jsonl")
    parser.add_argument("--only", nargs="+", choices=ALL, help="default: all configurations")
    parser.add_argument("--tokens", type=int, help="of the text, from its beginning; default: all")
    parser.add_argument("--items", type=int, help="questions, from the first; default: all")
    parser.add_argument("--window", type=int, default=1024, help="in tokens")
    parser.add_argument("--stride", type=int, help="in tokens; default: as long as the window")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--name", default="quality", help="of the JSON file")
    parser.add_argument("--results", type=Path, default=RESULTS, help="its folder")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
