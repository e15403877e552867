"""Loading `fewer.yaml`. `docs/configuration.md` is the table of all keys.

`load` checks everything that can be checked without starting anything, and says
`file:line:key: what to do` about the first fault.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from engine.protocol.errors import ConfigError
from gateway.backends.script import Script
from gateway.config_checks import (
    check_agent,
    check_cache,
    check_history,
    check_limits,
    check_output,
    check_sampling,
    read_schema,
)
from gateway.config_file import Document, decode, read, suggestion
from gateway.config_policies import (
    AgentConfig,
    BudgetConfig,
    CascadeConfig,
    CoalesceConfig,
    DedupConfig,
    ExactCacheConfig,
    HistoryConfig,
    InputConfig,
    LearnConfig,
    RouteCacheConfig,
    RoutingConfig,
    RuleConfig,
    SemanticCacheConfig,
    ShapeConfig,
)
from gateway.config_sections import (
    CacheConfig,
    Config,
    LedgerConfig,
    LimitsConfig,
    ModelConfig,
    Price,
    RecorderConfig,
    RecordsConfig,
    ResponsesConfig,
    RouteConfig,
    SamplingConfig,
    ServerConfig,
    default_store,
)
from gateway.config_values import Secret
from gateway.routing.settings import check_routing, read_routers

__all__ = [
    "AgentConfig",
    "BudgetConfig",
    "CacheConfig",
    "CascadeConfig",
    "CoalesceConfig",
    "Config",
    "DedupConfig",
    "ExactCacheConfig",
    "HistoryConfig",
    "InputConfig",
    "LearnConfig",
    "LedgerConfig",
    "LimitsConfig",
    "ModelConfig",
    "Price",
    "RecorderConfig",
    "RecordsConfig",
    "ResponsesConfig",
    "RouteCacheConfig",
    "RouteConfig",
    "RoutingConfig",
    "RuleConfig",
    "SamplingConfig",
    "Secret",
    "SemanticCacheConfig",
    "ServerConfig",
    "ShapeConfig",
    "default_config",
    "load",
]

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_SAMPLING = SamplingConfig(temperature=0.2, top_p=0.9)
"""What the makers of the default model recommend:
https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}")
_SOURCES = ("gguf", "engine", "openai", "scripted")
_REDIS = ("redis", "rediss", "unix")
_SCHEMES = {"engine": ("ws", "wss"), "openai": ("http", "https")}


def default_config(environ: Mapping[str, str]) -> Config:
    """What is served when there is no `fewer.yaml`: one small model, one route."""
    return Config(
        store=default_store(environ),
        models={DEFAULT_MODEL: ModelConfig(gguf=DEFAULT_MODEL, sampling=DEFAULT_SAMPLING)},
        routes={"chat": RouteConfig(DEFAULT_MODEL, BudgetConfig(max_tokens=512))},
        default_route="chat",
    )


def load(path: Path | None, environ: Mapping[str, str]) -> Config:
    """Read and check a file; without `path`, ./fewer.yaml, and without that, the built-in.

    Raises `ConfigError`. Paths in the file are relative to its folder.
    """
    if path is None:
        path = Path("fewer.yaml")
        if not path.exists():
            return default_config(environ)
    document = read(path, environ)
    return resolve(document, path.parent, environ)


def resolve(document: Document, folder: Path, environ: Mapping[str, str]) -> Config:
    """The checked configuration: paths absolute, secrets read, defaults that depend filled in."""
    _spell_out(document, folder, environ)
    config = decode(document, Config)
    if not config.models:
        document.fail(("models",), "name at least one model.")
    _check_names(document, config)
    _check_engine(document, config)
    _check_store(document, "cache", config.cache.store.reveal())
    _check_store(document, "ledger", config.ledger.store.reveal())
    _check_store(document, "limits", config.limits.store.reveal())
    _check_store(document, "records", config.records.store.reveal())
    if (kept := config.responses.store.reveal()) != "none":
        _check_store(document, "responses", kept)
    models = {
        name: _model(document, ("models", name), name, model, config, folder)
        for name, model in config.models.items()
    }
    for name, route in config.routes.items():
        _known(document, ("routes", name, "model"), route.model, models)
        check_sampling(document, ("routes", name), route.sampling)
        check_routing(document, ("routes", name, "route"), route, models)
        check_history(document, ("routes", name, "history"), route, config)
        check_output(document, ("routes", name), route, config)
        check_agent(document, ("routes", name), route)
        check_cache(document, ("routes", name, "cache", "semantic"), route)
    check_limits(document, config)
    _check_aliases(document, config)
    return replace(
        config,
        models=models,
        default_route=_default_route(document, config),
        recorder=_recorder(config, folder),
    )


def _recorder(config: Config, folder: Path) -> RecorderConfig | None:
    if (recorder := config.recorder) is None:
        return None
    return replace(recorder, path=folder.absolute() / recorder.path.expanduser())


def _spell_out(document: Document, folder: Path, environ: Mapping[str, str]) -> None:
    """Replace the words that stand for a value: `store: sqlite`, `threads: auto`."""
    if not isinstance(document.data, dict):
        document.fail((), "must be a mapping of settings.")
    kind, _, place = str(document.data.get("store", "sqlite")).partition(":")
    if kind != "sqlite":
        document.fail(("store",), "must be sqlite, or sqlite:PATH.")
    document.data["store"] = str(folder.absolute() / place if place else default_store(environ))
    engine = document.data.get("engine")
    if isinstance(engine, dict) and engine.get("threads") == "auto":
        engine["threads"] = 0
    _read_schemas(document, folder)
    read_routers(document, folder)


def _read_schemas(document: Document, folder: Path) -> None:
    """Before the types are checked: a file of the wrong form is found where it is named."""
    routes = document.data.get("routes")
    for name, route in routes.items() if isinstance(routes, dict) else ():
        shape = route.get("shape") if isinstance(route, dict) else None
        if isinstance(shape, dict) and "schema" in shape:
            key = ("routes", name, "shape", "schema")
            shape["schema"] = read_schema(document, key, shape["schema"], folder)


def _model(
    document: Document,
    key: tuple[str, ...],
    name: str,
    model: ModelConfig,
    config: Config,
    folder: Path,
) -> ModelConfig:
    given = [source for source in _SOURCES if getattr(model, source) is not None]
    if len(given) != 1:
        document.fail(
            key, f"needs exactly one of {', '.join(_SOURCES)}; it has {len(given) or 'none'}."
        )
    if given[0] in _SCHEMES:
        _check_url(document, (*key, given[0]), getattr(model, given[0]), _SCHEMES[given[0]])
    for other in model.fallback:
        _known(document, (*key, "fallback"), other, config.models)
        if other == name:
            document.fail((*key, "fallback"), "a model cannot be its own fallback.")
    check_sampling(document, key, model.sampling)
    return replace(
        model,
        gguf=_gguf(model.gguf, folder),
        scripted=model.scripted and _script(document, key, folder.absolute() / model.scripted),
        api_key=_api_key(document, key, model, folder),
    )


def _gguf(gguf: str | None, folder: Path) -> str | None:
    """A path (it has a slash or the suffix) from the file's folder; a name as it is."""
    if gguf is None or ("/" not in gguf and not gguf.endswith(".gguf")):
        return gguf
    return str(folder.absolute() / Path(gguf).expanduser())


def _script(document: Document, key: tuple[str, ...], path: Path) -> Path:
    """The path of a script that can be played."""
    try:
        Script.read(path)
    except ConfigError as error:
        document.fail((*key, "scripted"), error.message)
    return path


def _check_url(
    document: Document, key: tuple[str, ...], url: str, schemes: tuple[str, ...]
) -> None:
    parts = urlsplit(url)
    if parts.scheme not in schemes or not parts.hostname:
        document.fail(
            key, f"must be an address that starts with {schemes[0]}:// or {schemes[1]}://."
        )
    if parts.username or parts.password:
        document.fail(key, "must not hold a password. Use api_key.")


def _api_key(
    document: Document, key: tuple[str, ...], model: ModelConfig, folder: Path
) -> Secret | None:
    if model.api_key_file is None:
        return model.api_key if model.api_key and model.api_key.reveal() else None
    if model.api_key is not None:
        document.fail((*key, "api_key_file"), "give api_key or api_key_file, not both.")
    try:
        return Secret((folder / model.api_key_file).read_text("utf-8").strip())
    except (OSError, UnicodeDecodeError) as error:
        document.fail((*key, "api_key_file"), f"cannot be read: {error}.")


def _check_names(document: Document, config: Config) -> None:
    """Names travel in URLs, headers and metric labels."""
    for section in ("models", "aliases", "routes"):
        for name in getattr(config, section):
            if not _NAME.fullmatch(name):
                document.fail(
                    (section, name),
                    "a name has letters, digits and . _ - : / @ only, and starts with one of "
                    "the first two.",
                )


def _check_engine(document: Document, config: Config) -> None:
    for field, value in msgspec.structs.asdict(config.engine).items():
        least = 0 if field == "threads" else 1
        if isinstance(value, int) and value < least:
            document.fail(("engine", field), f"must be at least {least}, not {value}.")


def _check_store(document: Document, section: str, store: str) -> None:
    """The address is not shown: it may hold a password."""
    parts = urlsplit(store)
    place = parts.path if parts.scheme == "unix" else parts.hostname
    if store not in ("memory", "sqlite") and not (parts.scheme in _REDIS and place):
        document.fail((section, "store"), "must be memory, sqlite or redis://HOST:PORT/DATABASE.")


def _check_aliases(document: Document, config: Config) -> None:
    targets = [*config.routes, *config.models]
    for alias, target in config.aliases.items():
        if alias in targets:
            document.fail(("aliases", alias), "is the name of a route or model already.")
        _known(document, ("aliases", alias), target, targets)


def _default_route(document: Document, config: Config) -> str | None:
    if config.default_route is not None:
        _known(document, ("default_route",), config.default_route, config.routes)
        return config.default_route
    return next(iter(config.routes)) if len(config.routes) == 1 else None


def _known(
    document: Document, key: tuple[str, ...], name: str, known: Mapping[str, object] | list[str]
) -> None:
    if name not in known:
        document.fail(key, f"there is no {name!r}.{suggestion(name, known)}")
