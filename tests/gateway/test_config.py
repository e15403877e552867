"""`fewer.yaml`: what is understood, and how each mistake is pointed out."""

from __future__ import annotations

import pickle
from pathlib import Path

import msgspec
import pytest

from engine.protocol.errors import ConfigError
from engine.protocol.settings import EngineSettings
from gateway.config import (
    AgentConfig,
    BudgetConfig,
    CacheConfig,
    CascadeConfig,
    CoalesceConfig,
    Config,
    ExactCacheConfig,
    HistoryConfig,
    InputConfig,
    LearnConfig,
    LedgerConfig,
    ModelConfig,
    Price,
    RecorderConfig,
    RecordsConfig,
    ResponsesConfig,
    RouteCacheConfig,
    RouteConfig,
    RoutingConfig,
    RuleConfig,
    SamplingConfig,
    Secret,
    ServerConfig,
    ShapeConfig,
    default_config,
    load,
)

MODEL = "models: {small: {gguf: smollm2-135m}}\n"


def loaded(folder: Path, text: str, **environ: str) -> Config:
    path = folder / "fewer.yaml"
    path.write_text(text)
    return load(path, {"HOME": str(folder), **environ})


def fault(folder: Path, text: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(folder, text, **environ)
    return caught.value.message


DESIGN = """\
server: {host: 127.0.0.1, port: 8080}
store: ${FEWER_STORE:-sqlite}
engine: {max_model_len: 4096, max_num_seqs: 64, kv_cache_mb: 512, threads: auto}
models:
  small: {gguf: smollm2-135m, price: {input: 0.02, output: 0.06}}
  large: {openai: "http://127.0.0.1:8000/v1", model: Qwen/Qwen3-32B, api_key: "${VLLM_KEY:-}",
          fallback: [small]}
aliases: {gpt-4o-mini: chat}
routes:
  chat:
    model: small
    budget:  {max_tokens: 512}
"""


def test_the_file_of_the_design(tmp_path: Path) -> None:
    config = loaded(tmp_path, DESIGN)
    assert config.server.port == 8080
    assert config.store == tmp_path / ".local/state/fewer/fewer.sqlite3"
    assert config.engine.threads == 0
    assert config.models["small"].price == Price(input=0.02, output=0.06)
    large = config.models["large"]
    assert (large.model, large.api_key, large.fallback) == ("Qwen/Qwen3-32B", None, ("small",))
    assert config.routes == {"chat": RouteConfig("small", BudgetConfig(512))}
    assert config.default_route == "chat"
    assert config.gguf_models() == ["small"]


def test_the_projects_own_file() -> None:
    config = load(Path(__file__).parents[2] / "fewer.yaml", {"HOME": "/nowhere"})
    assert config.default_route in config.routes
    # A small model talks nonsense at temperature 1, and no chat client sends one.
    recommended = SamplingConfig(temperature=0.2, top_p=0.9)
    assert config.models["smollm2-135m"].sampling == recommended
    assert default_config({}).models["smollm2-135m"].sampling == recommended


def test_without_a_file_one_small_model_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load(None, {"XDG_STATE_HOME": "/state"})
    assert config == default_config({"XDG_STATE_HOME": "/state"})
    assert config.store == Path("/state/fewer/fewer.sqlite3")
    assert list(config.routes) == ["chat"]
    (tmp_path / "fewer.yaml").write_text(MODEL)
    assert list(load(None, {}).models) == ["small"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("server: {prot: 1}", "2:server.prot: unknown key. Did you mean port?"),
        (
            "routes:\n  chat: {modle: small}",
            "3:routes.chat.modle: unknown key. Did you mean model?",
        ),
        ("zebra: 1", "2:zebra: unknown key. Known are: server, store, "),
        ("server: {port: eighty}", "2:server.port: must be a whole number, not 'eighty'."),
        ("server: {port: 99999}", "2:server.port: must be a whole number <= 65535, not 99999."),
        ("server: {port: }", "2:server.port: must be a whole number, not nothing."),
        ("server: {keepalive: no}", "2:server.keepalive: must be one of comment, chunk, off, "),
        ("server: {keepalive: true}", "must be one of comment, chunk, off, not true."),
        ("server: {drain_s: .nan}", "2:server.drain_s: must be a number > 0"),
        ("server: 8080", "2:server: must be a mapping of settings, not 8080."),
        ("server: {host: a, host: b}", "2:server.host: given twice, first on line 2."),
        ("routes: [chat]", "2:routes: must be a mapping of names, not a list."),
        ("routes: {chat: {model: smal}}", "there is no 'smal'. Did you mean small?"),
        ("routes: {chat: {}}", "2:routes.chat: model is missing."),
        (
            "routes: {chat: {model: small, budget: {max_tokens: 0}}}",
            "2:routes.chat.budget.max_tokens: must be a whole number >= 1, not 0.",
        ),
        (
            "cache: {store: redis:6379}",
            "2:cache.store: must be memory, sqlite or redis://HOST:PORT/DATABASE.",
        ),
        (
            "routes: {chat: {model: small, cash: {}}}",
            "2:routes.chat.cash: unknown key. Did you mean cache?",
        ),
        (
            "routes: {chat: {model: small, sampling: {top_p: 0}}}",
            "2:routes.chat.sampling.top_p: must be above 0, not 0.0.",
        ),
        (
            "routes:\n  chat:\n    model: small\n    sampling:\n      top_k: -2",
            "6:routes.chat.sampling.top_k: must be -1 or 0 (off)",
        ),
        ("routes: {'a b': {model: small}}", "2:routes.a b: a name has letters"),
        ("aliases: {small: small}", "2:aliases.small: is the name of a route or model already."),
        ("aliases: {x: y}", "2:aliases.x: there is no 'y'."),
        ("default_route: chat", "2:default_route: there is no 'chat'."),
        ("store: redis://localhost", "2:store: must be sqlite, or sqlite:PATH."),
        ("engine: {threads: two}", "2:engine.threads: must be a whole number, not 'two'."),
        ("engine: {kv_cache_mb: 0}", "2:engine.kv_cache_mb: must be at least 1, not 0."),
        ("engine: {executor: tpu}", "2:engine.executor: must be one of auto, cpu, reference"),
        ('server: {port: "${PORT}"}', "2:server.port: the environment variable PORT is not set."),
        ('server: {port: "${PORT:-x}"}', "2:server.port: must be a whole number, not 'x'."),
        ("server: {", "(syntax):"),
        ("\tserver: 1", "2:(syntax):"),
        ("server: \x00", "1:(syntax):"),
    ],
)
def test_a_mistake_is_pointed_out(tmp_path: Path, text: str, message: str) -> None:
    said = fault(tmp_path, MODEL + text)
    assert said.startswith("fewer.yaml:")
    assert message in said
    assert said.endswith((".", "?"))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("{}", "1:models.m: needs exactly one of gguf, engine, openai, scripted; it has none."),
        (
            "{gguf: a, price: {input: .inf}}",
            "1:models.m.price.input: must be a number <= 1000000000.0",
        ),
        ("{gguf: a, openai: b}", "needs exactly one of gguf, engine, openai, scripted; it has 2."),
        (
            "{openai: localhost}",
            "1:models.m.openai: must be an address that starts with http:// or https://.",
        ),
        ("{engine: 'http://x'}", "1:models.m.engine: must be an address that starts with ws://"),
        ("{openai: 'http://u:p@x/v1'}", "1:models.m.openai: must not hold a password."),
        ("{gguf: a, fallback: [b]}", "1:models.m.fallback: there is no 'b'."),
        ("{gguf: a, fallback: [m]}", "a model cannot be its own fallback."),
        ("{gguf: a, fallback: m}", "1:models.m.fallback: must be a list, not 'm'."),
        ("{scripted: none.json}", "1:models.m.scripted: "),
        ("{scripted: none.json}", "none.json: cannot read the script: No such file"),
        ("{gguf: a, timeout_s: 0}", "1:models.m.timeout_s: must be a number > 0.0, not 0."),
        ("{gguf: 7}", "1:models.m.gguf: must be text, not 7."),
        ("{gguf: a, api_key: 7}", "1:models.m.api_key: must be text, not 7."),
        ("{gguf: a, api_key_file: none}", "1:models.m.api_key_file: cannot be read"),
        ("{gguf: a, api_key: k, api_key_file: f}", "give api_key or api_key_file, not both."),
        (
            "{gguf: a, sampling: {temperature: .nan}}",
            "1:models.m.sampling.temperature: must be between 0.0 and 100.0, not nan.",
        ),
        ("{gguf: a, sampling: {temperature: hot}}", "temperature: must be a number, not 'hot'."),
        ("{gguf: a, sampling: {top_k: 1.5}}", "top_k: must be a whole number, not 1.5."),
        ("{gguf: a, sampling: {temprature: 1}}", "Did you mean temperature?"),
        ("{openai: 'http://x/v1', images: maybe}", "must be one of accepted, refused"),
    ],
)
def test_a_mistake_in_a_model_is_pointed_out(tmp_path: Path, model: str, message: str) -> None:
    assert message in fault(tmp_path, f"models: {{m: {model}}}")


def test_what_is_no_configuration_at_all(tmp_path: Path) -> None:
    assert fault(tmp_path, "") == "fewer.yaml:1:models: name at least one model."
    assert "must be a mapping" in fault(tmp_path, "- a")
    (tmp_path / "fewer.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "fewer.yaml", {})
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory\.$"):
        load(tmp_path, {})
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "missing.yaml", {})


def test_values_from_the_environment(tmp_path: Path) -> None:
    text = MODEL + "server: {port: '${PORT:-1}', host: '${HOST}'}"
    config = loaded(tmp_path, text, PORT="9000", HOST="::1")
    assert (config.server.port, config.server.host) == (9000, "::1")
    assert loaded(tmp_path, text, HOST="h", PORT="").server.port == 1


def test_a_value_from_the_environment_adds_no_keys(tmp_path: Path) -> None:
    text = "models: {m: {openai: 'http://x/v1', api_key: '${KEY}'}}"
    config = loaded(tmp_path, text, KEY="12345\nmodel: other")
    assert config.models["m"].api_key == Secret("12345\nmodel: other")


def test_secrets_are_masked_and_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-hidden\n")
    config = loaded(tmp_path, "models: {m: {openai: 'http://x/v1', api_key_file: key}}")
    secret = config.models["m"].api_key
    assert secret is not None
    assert secret.reveal() == "sk-hidden"
    assert "hidden" not in repr(config) + f"{secret}"
    assert pickle.loads(pickle.dumps(config)) == config


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"steps": []}')
    config = loaded(
        tmp_path,
        "store: sqlite:state/k.sqlite3\n"
        "models: {a: {gguf: ./m.gguf}, b: {gguf: m.gguf}, c: {gguf: m}, d: {scripted: s.json}}",
    )
    models = config.models
    assert config.store == tmp_path / "state/k.sqlite3"
    assert [models[name].gguf for name in "abc"] == [f"{tmp_path}/m.gguf"] * 2 + ["m"]
    assert models["d"].scripted == tmp_path / "s.json"


def test_the_longest_window_asked_for_is_served(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        "engine: {max_model_len: 1000}\n"
        "models: {a: {gguf: x}, b: {gguf: y, max_model_len: 2000}}\n"
        "routes: {r: {model: a, max_model_len: 3000}, s: {model: b, max_model_len: 50}}",
    )
    assert config.engine_settings("a").max_model_len == 3000
    assert config.engine_settings("b").max_model_len == 2000
    assert config.default_route is None


def test_every_key_is_documented() -> None:
    """Every field of every section stands in docs/configuration.md."""
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text("utf-8")
    sections = (
        Config,
        ServerConfig,
        ModelConfig,
        Price,
        SamplingConfig,
        RouteConfig,
        BudgetConfig,
        LedgerConfig,
        RecorderConfig,
        CacheConfig,
        RecordsConfig,
        ResponsesConfig,
        HistoryConfig,
        RouteCacheConfig,
        ExactCacheConfig,
        CoalesceConfig,
        ShapeConfig,
        InputConfig,
        AgentConfig,
        LearnConfig,
        RoutingConfig,
        RuleConfig,
        CascadeConfig,
    )
    for section in sections:
        for field in msgspec.structs.fields(section):
            assert f"`{field.name}`" in text, f"{section.__name__}.{field.name}"
    for field in msgspec.structs.fields(EngineSettings):
        assert f"`{field.name}`" in text
