"""Whether JSON is whole at every cap, and what the masks cost.

    python -m benchmarks.structured PROMPTS.jsonl              100 prompts, 3 caps
    python -m benchmarks.structured PROMPTS.jsonl --count 20

PROMPTS are lines of JSON with a `prompt`, as arena-hard publishes them; they are taken evenly
from the whole file. Each is answered by the real engine, in this process, under one of a few
schemas in turn, at each cap; a cap below a schema's minimum becomes that. Then the first prompts
are answered side by side with a schema of long texts and as free text, both to the same number
of tokens, and the tokens per second are compared.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.landing import SAMPLING, Collector, read_prompts
from engine.assembly import Engine, open_engine
from engine.grammar.closing import Closer
from engine.grammar.compiled import Compiled, compile_grammar
from engine.grammar.vocabulary import Vocabulary
from engine.protocol.errors import FewerError
from engine.protocol.grammar import Grammar
from engine.protocol.settings import EngineSettings
from engine.request import Request
from fewer import model_store

SCHEMAS: dict[str, object] = {
    "any object": {"type": "object"},
    "record": {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "score": {"type": "integer", "minimum": 0, "maximum": 100},
            "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        },
        "required": ["title", "score", "tags"],
        "additionalProperties": False,
    },
    "choice": {"enum": ["yes", "no", "it depends"]},
    "tree": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "parts": {"type": "array", "items": {"$ref": "#"}},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
}
CAPS = (16, 48, 96)
LONG = {"type": "object", "properties": {"text": {"type": "string", "minLength": 1000}},
        "required": ["text"]}  # fmt: skip
SIDE_BY_SIDE = 8
SPEED_TOKENS = 128


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def answered(engine: Engine, requests: Sequence[Request]) -> Collector:
    sink = Collector()
    for request in requests:
        engine.core.submit(request, sink)
    while engine.core.turn():
        pass
    return sink


def asked(engine: Engine, id: str, prompt: str, grammar: Compiled | None, cap: int) -> Request:
    ids = engine.template.render([{"role": "user", "content": f"{prompt}\n\nAnswer in JSON."}])
    sampling = msgspec.structs.replace(SAMPLING, seed=len(id), ignore_eos=grammar is None)
    return Request(
        id=id,
        prompts=[np.array(ids, np.int32)],
        sampling=sampling,
        max_tokens=cap,
        grammar=grammar,
    )


def wholes(engine: Engine, prompts: Sequence[str], grammars: Sequence[Compiled]) -> None:
    """Print how many answers parse, by cap."""
    for cap in CAPS:
        requests = []
        for number, prompt in enumerate(prompts):
            grammar = grammars[number % len(grammars)]
            least = max(cap, grammar.minimum_tokens or 0)
            requests.append(asked(engine, f"{cap}-{number}", prompt, grammar, least))
        sink = answered(engine, requests)
        finals = [sink.events[request.id] for request in requests]
        parsed = sum(is_json("".join(event.text for event in events)) for events in finals)
        cut = sum(events[-1].finish == "length" for events in finals)
        print(f"cap {cap:3}: {parsed} of {len(requests)} parse; {cut} closed at the cap")


def speed(engine: Engine, prompts: Sequence[str], grammar: Compiled | None) -> float:
    """Tokens per second over all, the prompts' prefill included."""
    requests = [
        asked(engine, f"speed-{number}", prompt, grammar, SPEED_TOKENS)
        for number, prompt in enumerate(prompts[:SIDE_BY_SIDE])
    ]
    began_s = time.perf_counter()
    sink = answered(engine, requests)
    tokens = sum(event.tokens for events in sink.events.values() for event in events)
    return tokens / (time.perf_counter() - began_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=1)
    told = parser.parse_args()
    settings = EngineSettings(
        executor="cpu",
        threads=told.threads,
        max_model_len=8192,
        max_num_waiting=2 * told.count,
        speculation="off",
    )
    try:
        engine = open_engine(model_store.resolve(told.model), settings, name=told.model)
    except FewerError as error:
        raise SystemExit(f"structured: {error.message}") from None
    closer = Closer(Vocabulary(engine.tokenizer, engine.shape.vocab_size))
    schemas = (*SCHEMAS.values(), LONG)
    texts = [Grammar("json_schema", json.dumps(schema)) for schema in schemas]
    *grammars, long = [compile_grammar(text, closer) for text in texts]
    prompts = read_prompts(told.prompts, told.count)
    wholes(engine, prompts, grammars)
    speed(engine, prompts, None)  # the prompts are in the prefix cache afterwards
    free, masked = [], []
    for _ in range(3):
        free.append(speed(engine, prompts, None))
        masked.append(speed(engine, prompts, long))
    print(f"{SIDE_BY_SIDE} side by side: free text {max(free):.1f} tokens/s, ", end="")
    print(f"with a schema {max(masked):.1f} ({max(masked) / max(free):.2f})")
    engine.core.stop(0)


if __name__ == "__main__":
    main()
