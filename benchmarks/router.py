"""How much a trained router is worth: random halves of RouteLLM's published answers.

    python -m benchmarks.router FOLDER                20 halves of each set, about three minutes
    python -m benchmarks.router FOLDER --splits 5

FOLDER holds `gsm8k_responses_even.csv`, `mmlu_responses_29_subjects.tar.gz` and the two lists of
contaminated prompts, which are left out: RouteLLM's own routers had been trained on twins of them.
In each split a router is trained on one half as `fewer route train` does it, and on the other half
it chooses between Mixtral 8x7B and GPT-4 at three shares of strong calls; beside it, prompt length.
Each row has means over the splits of the share of the gap that is recovered, and 95 % intervals of
the difference. `interval_of_splits` is of its mean over these splits: it says that the result is no
accident of the halves. `interval_of_prompts`, by the corrected resampled t-test (Nadeau and Bengio
2003), allows for the splits' being of the same prompts: it says what other prompts would show.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import tarfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from gateway.embedding import StaticEmbedding, bundled
from gateway.routing.curve import lengths, recovered
from gateway.routing.outcomes import Columns, Numbers, Outcomes, parse_outcomes
from gateway.routing.training import Inputs, train
from policies.router_model import Router

SHARES = (0.2, 0.3, 0.5)
COLUMNS = Columns(weak="mistralai/Mixtral-8x7B-Instruct-v0.1", strong="gpt-4-1106-preview")
T_975 = {19: 2.093, 9: 2.262, 4: 2.776}
"""Student's, by degrees of freedom."""


class Row(msgspec.Struct, frozen=True):
    """One set at one share."""

    prompts: int
    set: str
    share: float
    splits: int
    router: float
    length: float
    difference: float
    interval_of_splits: tuple[float, float]
    interval_of_prompts: tuple[float, float]


def measure(name: str, outcomes: Outcomes, embed: StaticEmbedding, splits: int) -> Iterator[Row]:
    random = np.random.default_rng(0)
    inputs = Inputs.seen(outcomes.prompts, embed)
    found = np.array(
        [_split(outcomes, inputs, embed, random.permutation(len(outcomes))) for _ in range(splits)]
    )  # [splits, shares, 2]
    for place, share in enumerate(SHARES):
        router, length = found[:, place, 0], found[:, place, 1]
        difference = router - length
        yield Row(
            len(outcomes),
            name,
            share,
            splits,
            round(float(router.mean()), 3),
            round(float(length.mean()), 3),
            round(float(difference.mean()), 3),
            _interval(difference, 1 / splits),
            # Both halves are of one size.
            _interval(difference, 1 / splits + 1),
        )


def _split(
    outcomes: Outcomes, inputs: Inputs, embed: StaticEmbedding, order: NDArray[np.intp]
) -> list[list[float]]:
    """Of the gap that is recovered, at each share: by the router, and by length."""
    half = len(order) // 2
    trained, tested = order[:half], order[half:]
    model = train(outcomes.of(trained), embed, inputs.of(trained))
    router = Router(model, lambda text: embed(text).tolist())
    test = outcomes.of(tested)
    scores = np.array([router.score(prompt) for prompt in test.prompts])
    return [[recovered(way, test, share) for way in (scores, lengths(test))] for share in SHARES]


def _interval(difference: Numbers, weight: float) -> tuple[float, float]:
    width = T_975[len(difference) - 1] * math.sqrt(weight * float(difference.var(ddof=1)))
    mean = float(difference.mean())
    return round(mean - width, 3), round(mean + width, 3)


def gsm8k(folder: Path) -> Outcomes:
    path = folder / "gsm8k_responses_even.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return _clean([parse_outcomes(path.name, file, COLUMNS)], folder, "gsm8k")


def mmlu(folder: Path) -> Outcomes:
    parts = []
    with tarfile.open(folder / "mmlu_responses_29_subjects.tar.gz") as archive:
        for name in sorted(archive.getnames()):
            if (member := archive.extractfile(name)) is not None:
                with io.TextIOWrapper(member, encoding="utf-8", newline="") as file:
                    parts.append(parse_outcomes(name, file, COLUMNS))
    return _clean(parts, folder, "mmlu")


def _clean(parts: list[Outcomes], folder: Path, name: str) -> Outcomes:
    """All of them but the contaminated prompts."""
    lines = (folder / f"{name}_contaminated_prompts.jsonl").read_text("utf-8").splitlines()
    contaminated = {json.loads(line)["eval_prompt"] for line in lines}
    prompts = [prompt for part in parts for prompt in part.prompts]
    whole = Outcomes(
        prompts,
        np.concatenate([part.weak for part in parts]),
        np.concatenate([part.strong for part in parts]),
    )
    return whole.of(np.array([i for i, p in enumerate(prompts) if p not in contaminated]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, choices=sorted(d + 1 for d in T_975), default=20)
    arguments = parser.parse_args()
    for name, read in (("mmlu", mmlu), ("gsm8k", gsm8k)):
        for row in measure(name, read(arguments.folder), bundled(), arguments.splits):
            print(json.dumps(msgspec.structs.asdict(row)), flush=True)


if __name__ == "__main__":
    main()
