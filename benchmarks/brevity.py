"""How long answers are with the instruction of `brevity: concise`, and without.

    python -m benchmarks.brevity PROMPTS.jsonl                 100 prompts, 512 tokens
    python -m benchmarks.brevity PROMPTS.jsonl --count 20 --show

PROMPTS as for `benchmarks.landing`. Each is answered twice by the real engine, in this process,
with the same seed; the second time as the policy `shape` makes it. The saving is that of
`policies.savings`, with each prompt as a conversation of its own, and the interval of one look.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.landing import SAMPLING, Answer, Collector, answer_of, read_prompts
from engine.assembly import Engine, open_engine
from engine.protocol.errors import FewerError
from engine.protocol.settings import EngineSettings
from engine.request import Request as EngineRequest
from fewer import model_store
from policies.context import Context
from policies.request import Request
from policies.savings import interval, ratio, saving
from policies.shape import ShapePolicy
from policies.turns import Message

POLICY = ShapePolicy(concise=True)


def concise(prompt: str) -> list[Message]:
    """The messages that the policy makes of a prompt."""
    asked = Request("chat", "chat", messages=[{"role": "user", "content": prompt}])
    return (POLICY.decide(asked, Context("chat")).request or asked).messages


def answers(engine: Engine, prompts: Sequence[list[Message]], max_tokens: int) -> list[Answer]:
    """One to each of the prompts."""
    sink = Collector()
    for number, messages in enumerate(prompts):
        ids = np.array(engine.template.render(messages), np.int32)
        sampling = msgspec.structs.replace(SAMPLING, seed=number)
        engine.core.submit(
            EngineRequest(id=f"{number}", prompts=[ids], sampling=sampling, max_tokens=max_tokens),
            sink,
        )
    while engine.core.turn():
        pass
    return [answer_of(sink.events[f"{number}"], max_tokens) for number in range(len(prompts))]


def report(plain: Sequence[Answer], brief: Sequence[Answer]) -> None:
    """Means, ends, and the share of tokens that is saved."""
    for name, found in (("as asked", plain), ("concise", brief)):
        mean = sum(answer.tokens for answer in found) / len(found)
        ended = sum(answer.finish == "stop" for answer in found)
        print(f"{name:10}{mean:8.1f} tokens, {ended} of {len(found)} ended by themselves")
    clusters = ([(answer.tokens, 1.0) for answer in found] for found in (plain, brief))
    if (compared := ratio(*clusters)) is not None:
        bounds = interval(compared, 1)
        low, high = saving(bounds.high), saving(bounds.low)
        print(f"saved: {saving(compared.effect):.1%} of the tokens ({low:.1%} to {high:.1%})")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="print how each answer begins")
    told = parser.parse_args()
    settings = EngineSettings(
        executor="cpu", threads=told.threads, max_model_len=8192, max_num_waiting=told.count
    )
    try:
        engine = open_engine(model_store.resolve(told.model), settings, name=told.model)
    except FewerError as error:
        raise SystemExit(f"brevity: {error.message}") from None
    prompts = read_prompts(told.prompts, told.count)
    as_asked: list[list[Message]] = [[{"role": "user", "content": prompt}] for prompt in prompts]
    plain = answers(engine, as_asked, told.max_tokens)
    brief = answers(engine, [concise(prompt) for prompt in prompts], told.max_tokens)
    engine.core.stop(0)
    for left, right in zip(plain, brief, strict=True) if told.show else ():
        print(f"{left.tokens:>4} {left.text[:70]!r}\n{right.tokens:>4} {right.text[:70]!r}")
    report(plain, brief)


if __name__ == "__main__":
    main()
