"""Two models of our own, served at once: a route chooses between their engines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.fakes.service import serving

pytestmark = pytest.mark.model

CONFIG = """
store: sqlite:keys.sqlite3
engine: {max_model_len: 256, kv_cache_mb: 64, max_num_seqs: 4}
models:
  small: {gguf: "${MODEL}"}
  large: {gguf: "${MODEL}"}
routes:
  ruled: {model: large, route: {holdout: 0, rules: [{script: han, model: small}]}}
  unsure: {model: large, route: {holdout: 0, weak: small, strong: large, cascade: {min_margin: 1}}}
  sure: {model: large, route: {holdout: 0, weak: small, strong: large, cascade: {min_margin: 0.01}}}
"""


@pytest.fixture(scope="module")
def gateway(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("two")
    config = folder / "fewer.yaml"
    config.write_text(CONFIG)
    environ = {"MODEL": str(model_path), "XDG_STATE_HOME": str(folder)}
    with serving(config, "--port", "0", "--engine-port", "0", environ=environ) as service:
        yield service.url()


def asked(gateway: str, route: str, text: str, **fields: Any) -> tuple[str, str]:
    """The model that answered, and its whole answer, as it came."""
    message = {"role": "user", "content": text}
    body = {"model": route, "messages": [message], "temperature": 0, "max_tokens": 8, **fields}
    request = Request(
        f"{gateway}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urlopen(request, timeout=60) as response:
        return response.headers["x-fewer-model"], response.read().decode()


def text_of(answer: str) -> str:
    choice = json.loads(answer)["choices"][0]
    assert choice.get("logprobs") is None
    return str(choice["message"]["content"])


def test_each_model_has_an_engine(gateway: str) -> None:
    answers = {name: asked(gateway, name, "What is the capital of Japan?")
               for name in ("small", "large")}  # fmt: skip
    assert {name: model for name, (model, _) in answers.items()} == {
        "small": "small",
        "large": "large",
    }
    assert text_of(answers["small"][1]) == text_of(answers["large"][1])


@pytest.mark.parametrize(("text", "model"), [("日本的首都是哪里？", "small"), ("Hi", "large")])
def test_a_rule_chooses_the_engine(gateway: str, text: str, model: str) -> None:
    assert asked(gateway, "ruled", text)[0] == model


@pytest.mark.parametrize(("route", "model"), [("sure", "small"), ("unsure", "large")])
def test_a_cascade_reads_our_engines_margins(gateway: str, route: str, model: str) -> None:
    text = "What is the capital of France?"
    answered, whole = asked(gateway, route, text)
    assert answered == model
    assert text_of(whole) == text_of(asked(gateway, "large", text)[1])
    streamed, events = asked(gateway, route, text, stream=True, seed=1)
    assert (streamed, events.count("data: [DONE]")) == (model, 1)
    assert "logprob" not in events.replace('"logprobs":null', "")
