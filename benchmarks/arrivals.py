"""When requests arrive and how long they are: from a recorded trace, or drawn."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import numpy as np

SYNTHETIC_SEED = 1
SYNTHETIC_PROMPT = (300.0, 1.0)
"""Median in tokens and spread (sigma of the logarithm), roughly those of a chat."""
SYNTHETIC_OUTPUT = (100.0, 0.8)
LONGEST_PROMPT_TOKENS = 3_500
LONGEST_OUTPUT_TOKENS = 512
"""The default budget's cap; both together fit into the default window."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """at_s: from the beginning of the trace"""

    at_s: float
    prompt_tokens: int
    output_tokens: int


def read_trace(path: Path) -> Iterator[Arrival]:
    """Azure's format: `TIMESTAMP,ContextTokens,GeneratedTokens`, in order of arrival.

    Source: https://github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.
    Raises `ValueError` for a file of another shape.
    """
    with path.open(newline="") as file:
        began: datetime | None = None
        for line in csv.DictReader(file):
            try:
                # Python reads at most six digits of a fraction; the trace has seven.
                at = datetime.fromisoformat(line["TIMESTAMP"][:26])
                lengths = int(line["ContextTokens"]), int(line["GeneratedTokens"])
            except (KeyError, TypeError) as error:
                raise ValueError(f"{path} is no trace: it lacks the column {error}.") from error
            began = began or at
            yield Arrival((at - began).total_seconds(), *lengths)


def poisson(rate: float, seconds: float, seed: int = SYNTHETIC_SEED) -> list[Arrival]:
    """`rate` requests a second on average, with lengths as in a chat; the same ones each time."""
    random = np.random.default_rng(seed)
    arrivals, at_s = [], float(random.exponential(1 / rate))
    while at_s < seconds:
        prompt, output = (
            max(1, int(random.lognormal(np.log(median), spread)))
            for median, spread in (SYNTHETIC_PROMPT, SYNTHETIC_OUTPUT)
        )
        arrivals.append(Arrival(at_s, prompt, output))
        at_s += float(random.exponential(1 / rate))
    return arrivals


def scaled(arrivals: Iterator[Arrival], speed: float, seconds: float) -> list[Arrival]:
    """The first `seconds` of a trace that is played `speed` times as fast as it was recorded."""
    played = []
    for arrival in arrivals:
        if arrival.at_s / speed >= seconds:
            break
        played.append(replace(arrival, at_s=arrival.at_s / speed))
    return played


def clipped(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """With lengths that the default window and budget let through."""
    return [
        Arrival(
            arrival.at_s,
            max(1, min(arrival.prompt_tokens, LONGEST_PROMPT_TOKENS)),
            max(1, min(arrival.output_tokens, LONGEST_OUTPUT_TOKENS)),
        )
        for arrival in arrivals
    ]
