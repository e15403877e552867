"""The setting `route` of a route: what is right, and what each mistake is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from engine.protocol.errors import ConfigError, SetupError
from gateway import embedding
from gateway.config import Config, RouteConfig, load
from gateway.route_policies import policies_of
from gateway.routes import Routes
from policies.context import Context
from policies.request import Request
from policies.route import RoutePolicy
from tests.policies.test_router_model import a_model

HEAD = """
models:
  small: {openai: "http://127.0.0.1:1/v1"}
  large: {openai: "http://127.0.0.1:1/v1", fallback: [small]}
  code: {openai: "http://127.0.0.1:1/v1"}
routes:
  chat:
    model: large
    route: """


@pytest.fixture(scope="module")
def router() -> bytes:
    """A file that goes with the bundled embedding."""
    pytest.importorskip("wordllama")
    bundled = embedding.bundled()
    model = a_model([0.0] * bundled.dimensions)
    return msgspec.json.encode(msgspec.structs.replace(model, embedding=bundled.fingerprint))


def loaded(tmp_path: Path, setting: str) -> Config:
    path = tmp_path / "fewer.yaml"
    path.write_text(HEAD + setting, "utf-8")
    return load(path, {})


def routing_of(config: Config) -> RoutePolicy:
    (policy,) = (p for p in policies_of(config.routes["chat"]) if isinstance(p, RoutePolicy))
    return policy


def test_everything_that_can_be_said(tmp_path: Path, router: bytes) -> None:
    (tmp_path / "router.json").write_bytes(router)
    config = loaded(
        tmp_path,
        """
      mode: active
      holdout: 0.1
      per: turn
      rules:
        - {has: [images], model: large}
        - {pattern: "(?i)sql|查询", model: code}
        - {script: han, min_prompt_tokens: 10, max_prompt_tokens: 500, model: small}
      router: router.json
      strong_share: 0.25
      weak: small
      strong: large
      cascade: {tokens: 8, min_margin: 0.3, wait_ms: 500}
""",
    )
    policy = routing_of(config)
    assert (policy.mode, policy.holdout) == ("active", 0.1)
    request = Request("chat", "chat", [{"role": "user", "content": "写一个 SQL"}])
    assert policy.decide(request, Context("chat", model="large")).models == ("code",)
    assert config.routes["chat"].chosen == ("large", "code", "small")


def test_another_router_is_another_experiment(tmp_path: Path, router: bytes) -> None:
    epochs = set()
    for data in (router, router.replace(b'"bias":0.0', b'"bias":0.5')):
        (tmp_path / "router.json").write_bytes(data)
        setting = "{router: router.json, threshold: 0.2, weak: small, strong: large}"
        epochs.add(routing_of(loaded(tmp_path, setting)).epoch)
    assert len(epochs) == 2


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("{}", "fewer.yaml:9:routes.chat.route: says nothing: give rules, router or cascade."),
        ("{rules: [{model: lage}]}", "rules.0.model: there is no 'lage'. Did you mean large?"),
        ("{rules: [{modl: large}]}", "rules.0.modl: unknown key. Did you mean model?"),
        ("{rules: [{}]}", "rules.0: model is missing."),
        ("{rules: [{model: large, has: [tool]}]}", "rules.0.has: "),
        ("{rules: [{model: large, script: cjk}]}", "rules.0.script: is no script."),
        ("{rules: [{model: large, pattern: '('}]}", "rules.0.pattern: is no regular expression"),
        (
            "{rules: [{model: large, min_prompt_tokens: 9, max_prompt_tokens: 8}]}",
            "rules.0.max_prompt_tokens: must not be below min_prompt_tokens (9).",
        ),
        ("{cascade: {}, strong: large}", "cascade: needs weak beside it."),
        ("{cascade: {}, weak: large, strong: large}", "strong: must be another model than weak."),
        ("{cascade: {}, weak: tiny, strong: large}", "weak: there is no 'tiny'."),
        ("{cascade: {min_margin: 0}, weak: small, strong: large}", "cascade.min_margin: "),
        ("{rules: [{model: code}], weak: small}", "weak: is chosen by router or cascade"),
        (
            "{cascade: {}, weak: small, strong: large, threshold: 0.5}",
            "threshold: is the router's; give router.",
        ),
        (
            "{router: r.json, threshold: 0.5, weak: small, strong: large}",
            "r.json cannot be read: No such file or directory.",
        ),
        ("{router: {format: x}}", "router: must be the path of a file"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, setting: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, setting)
    assert told in caught.value.message


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"\x80\x04\x95pickle", "router.json is no router file: "),
        (b'{"format": "fewer-router"', "router.json is no router file: "),
        (b" " * 300_000, "router.json is no router file: it has more than 256 kB."),
        (
            msgspec.json.encode(a_model()),
            "router: The router was trained with another text embedding",
        ),
    ],
)
def test_a_file_that_is_no_router_of_ours(tmp_path: Path, data: bytes, told: str) -> None:
    pytest.importorskip("wordllama")
    (tmp_path / "router.json").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, "{router: router.json, threshold: 0.5, weak: small, strong: large}")
    assert told in caught.value.message


@pytest.mark.parametrize("threshold", ["", "threshold: 0.2, strong_share: 0.5, "])
def test_a_router_has_one_threshold(tmp_path: Path, router: bytes, threshold: str) -> None:
    (tmp_path / "router.json").write_bytes(router)
    with pytest.raises(ConfigError, match="exactly one of threshold and strong_share"):
        loaded(tmp_path, f"{{router: router.json, {threshold}weak: small, strong: large}}")


def test_without_the_embedding_the_setting_is_named(
    tmp_path: Path, router: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise SetupError("The text embedding is not installed. pip install 'fewer[semantic]'")

    (tmp_path / "router.json").write_bytes(router)
    monkeypatch.setattr(embedding, "bundled", missing)
    with pytest.raises(ConfigError, match=r"routes\.chat\.route\.router: .*fewer\[semantic\]"):
        loaded(tmp_path, "{router: router.json, threshold: 0.5, weak: small, strong: large}")


def test_rules_and_cascades_load_no_embedding(tmp_path: Path) -> None:
    path = tmp_path / "fewer.yaml"
    path.write_text(HEAD + "{rules: [{model: code}], cascade: {}, weak: small, strong: large}")
    script = (
        "import sys, pathlib; from gateway.config import load; "
        "from gateway.route_policies import policies_of; "
        "config = load(pathlib.Path(sys.argv[1]), {}); policies_of(config.routes['chat']); "
        "print(sorted({'numpy', 'tokenizers', 'safetensors'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout.replace("'", '"')) == []


def test_all_models_that_may_answer_are_the_routes(tmp_path: Path) -> None:
    config = loaded(tmp_path, "{rules: [{script: han, model: code}, {model: small}]}")
    routes = Routes(config)
    assert routes.by_name["chat"].models == ("large", "small", "code")
    assert list(routes.by_name) == ["chat"]
    config = loaded(tmp_path, "{rules: [{model: code}], mode: shadow}")
    assert Routes(config).by_name["chat"].models == ("large", "small")
    assert isinstance(config.routes["chat"], RouteConfig)
