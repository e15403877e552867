"""How answers end under a tight budget, with a soft limit and without.

    python -m benchmarks.landing PROMPTS.jsonl                 100 prompts, 96 tokens, soft at 0.6
    python -m benchmarks.landing PROMPTS.jsonl --count 20 --show

PROMPTS are lines of JSON with a `prompt`, as arena-hard publishes them; they are taken evenly
from the whole file. Each is answered twice by the real engine, in this process, with the same
seed: up to the cap alone, and with the soft limit. Since the tokens are the same, the second
answer must be the first one up to the first place after the soft limit at which it may end, and
this is checked with the whole text at hand.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from engine.assembly import Engine, open_engine
from engine.protocol.errors import FewerError
from engine.protocol.frames import Event, Events, Failed, Finish, FromEngine
from engine.protocol.landing import LandingPoints
from engine.protocol.sampling import Sampling
from engine.protocol.settings import EngineSettings
from engine.request import Request
from fewer import model_store

SAMPLING = Sampling(temperature=0.2, top_p=0.9)
"""As the bundled model's makers recommend."""


class Answer(msgspec.Struct, frozen=True):
    """earliest: the character after which the token at the soft limit begins, counted from 1;
    None where the answer is shorter
    clean:    it ended by itself, or at a place of `engine.protocol.landing`
    in_code:  it ends inside an open code fence
    """

    text: str
    tokens: int
    finish: Finish | None
    landed: bool
    earliest: int | None
    clean: bool
    in_code: bool


class Pair(msgspec.Struct, frozen=True):
    """The same prompt answered up to the cap, and with the soft limit."""

    plain: Answer
    soft: Answer

    @property
    def expected(self) -> int | None:
        """Where the plain answer's text may first end after the soft limit."""
        points = LandingPoints()
        points.earliest = self.plain.earliest
        return points.feed(self.plain.text)

    @property
    def is_right(self) -> bool:
        """Does the second answer end where it should?"""
        if self.expected is None:
            return (self.soft.text, self.soft.finish) == (self.plain.text, self.plain.finish)
        expected = self.plain.text[: self.expected]
        return self.soft.landed and self.soft.text.rstrip() == expected


class Collector:
    """A sink that keeps the events of each request."""

    def __init__(self) -> None:
        self.events: dict[str, list[Event]] = {}

    def deliver(self, frames: list[FromEngine]) -> None:
        for frame in frames:
            if isinstance(frame, Failed):
                raise SystemExit(f"landing: {frame.id}: {frame.message}")
            for event in frame.events if isinstance(frame, Events) else ():
                self.events.setdefault(event.id, []).append(event)


def answer_of(events: Sequence[Event], soft_max_tokens: int) -> Answer:
    """What the events of one choice come to."""
    text, tokens, earliest = "", 0, None
    for event in events:
        if tokens < soft_max_tokens <= tokens + event.tokens and event.text:
            earliest = len(text) + 1
        text, tokens = text + event.text, tokens + event.tokens
    points = LandingPoints()
    points.feed(text)
    last = events[-1]
    clean = last.finish == "stop" or last.landed or points.ends_cleanly
    return Answer(text, tokens, last.finish, last.landed, earliest, clean, _in_code(text))


def _in_code(text: str) -> bool:
    """By the number of fences, and by no rule of ours."""
    return sum(line.lstrip().startswith("```") for line in text.splitlines()) % 2 == 1


def pairs(engine: Engine, prompts: Sequence[str], max_tokens: int, soft: int) -> Iterator[Pair]:
    sink = Collector()
    for number, prompt in enumerate(prompts):
        ids = np.array(engine.template.render([{"role": "user", "content": prompt}]), np.int32)
        sampling = msgspec.structs.replace(SAMPLING, seed=number)
        for name, limit in (("plain", None), ("soft", soft)):
            request = Request(
                id=f"{name}{number}",
                prompts=[ids],
                sampling=sampling,
                max_tokens=max_tokens,
                soft_max_tokens=limit,
            )
            engine.core.submit(request, sink)
    while engine.core.turn():
        pass
    for number in range(len(prompts)):
        plain, landed = (
            answer_of(sink.events[f"{name}{number}"], soft) for name in ("plain", "soft")
        )
        yield Pair(plain, landed)


def read_prompts(path: Path, count: int) -> list[str]:
    """`count` of the prompts, evenly from the whole file."""
    lines = path.read_text("utf-8").splitlines()
    return [json.loads(lines[i * len(lines) // count])["prompt"] for i in range(count)]


def share_clean(answers: Sequence[Answer]) -> str:
    """Of the answers that end outside of open code."""
    outside = [answer.clean for answer in answers if not answer.in_code]
    share = 100 * sum(outside) / len(outside) if outside else 0.0
    return f"{share:5.1f} % of {len(outside)}"


def report(found: Sequence[Pair]) -> None:
    plain, soft = [pair.plain for pair in found], [pair.soft for pair in found]
    print(f"{'':16}{'cap alone':>18}{'soft limit':>18}")
    both = (plain, soft)
    rows: dict[str, list[str]] = {
        "by itself": [str(sum(each.finish == "stop" for each in one)) for one in both],
        "landed": [str(sum(each.landed for each in one)) for one in both],
        "in open code": [str(sum(each.in_code for each in one)) for one in both],
        "clean, outside": [share_clean(one) for one in both],
        "tokens, mean": [f"{sum(each.tokens for each in one) / len(one):.1f}" for one in both],
    }
    for name, (left, right) in rows.items():
        print(f"{name:16}{left:>18}{right:>18}")
    possible = sum(pair.expected is not None for pair in found)
    correct = sum(pair.is_right for pair in found)
    print(f"{possible} of {len(found)} could land; {correct} ended where they should")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--soft", type=float, default=0.6)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="print how each answer ends")
    told = parser.parse_args()
    settings = EngineSettings(
        executor="cpu",
        threads=told.threads,
        max_model_len=8192,
        max_num_waiting=2 * told.count,
    )
    try:
        engine = open_engine(model_store.resolve(told.model), settings, name=told.model)
    except FewerError as error:
        raise SystemExit(f"landing: {error.message}") from None
    prompts = read_prompts(told.prompts, told.count)
    found = list(pairs(engine, prompts, told.max_tokens, round(told.soft * told.max_tokens)))
    engine.core.stop(0)
    for number, pair in enumerate(found if told.show else ()):
        ending = "landed" if pair.soft.landed else pair.soft.finish
        print(f"{number:>3} {ending:6} {pair.soft.text[-70:]!r}")
    report(found)


if __name__ == "__main__":
    main()
