"""Arguments that several commands share, and the configuration that they lead to."""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from engine.protocol.errors import SetupError

if TYPE_CHECKING:
    from gateway.config import Config, RouteConfig
    from gateway.source import Source

    Actions = argparse._SubParsersAction[argparse.ArgumentParser]

DEFAULT_ENGINE_PORT = 8090


def add_action(actions: Actions, name: str, summary: str) -> argparse.ArgumentParser:
    """A command below another, or the program; its own help says what their list says of it."""
    description = f"{summary[0].upper()}{summary[1:]}."
    return actions.add_parser(name, help=summary, description=description)


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="configuration (default: ./fewer.yaml where there is one)",
    )


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        metavar="NAME|PATH",
        help="serve this model or GGUF file in place of the configuration's own",
    )


def add_executor(parser: argparse.ArgumentParser) -> None:
    from engine.protocol.settings import ExecutorName

    parser.add_argument(
        "--executor", choices=get_args(ExecutorName), help="what computes the model's steps"
    )


def add_kv_cache_dtype(parser: argparse.ArgumentParser) -> None:
    from engine.protocol.settings import KvCacheDtype

    parser.add_argument(
        "--kv-cache-dtype", choices=get_args(KvCacheDtype), help="what KV is kept in"
    )


def add_speculation(parser: argparse.ArgumentParser) -> None:
    from engine.protocol.settings import Speculation

    parser.add_argument(
        "--speculation", choices=get_args(Speculation), help="guess what comes next, and verify it"
    )


def add_engine_port(parser: argparse.ArgumentParser, meaning: str) -> None:
    parser.add_argument(
        "--engine-port",
        type=int,
        default=DEFAULT_ENGINE_PORT,
        metavar="PORT",
        help=f"{meaning} (default: %(default)s)",
    )


def add_listening(parser: argparse.ArgumentParser) -> None:
    """Where the gateway listens; what is not given is taken from the configuration."""
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port, 0 for a free one (default: 8080)")
    parser.add_argument("--workers", type=int, metavar="N", help="gateway processes (default: 1)")


def add_supervised(parser: argparse.ArgumentParser) -> None:
    """For the children of `fewer serve` only: standard input is a `Lifeline`."""
    parser.add_argument("--supervised", action="store_true", help=argparse.SUPPRESS)


def load_config(arguments: argparse.Namespace) -> Config:
    """The configuration, with what the command line says in place of what the file says.

    Raises `ConfigError`.
    """
    from msgspec.structs import replace

    from gateway import config as configuration

    config = configuration.load(arguments.config, os.environ)
    if model := getattr(arguments, "model", None):
        config = with_model(config, model)
    fields = ("executor", "kv_cache_dtype", "speculation")
    given = {field: getattr(arguments, field, None) for field in fields}
    told = {field: value for field, value in given.items() if value is not None}
    return replace(config, engine=replace(config.engine, **told))


def source(arguments: argparse.Namespace) -> Source:
    """The configuration as `load_config` has it, to be read again whenever its file changes."""
    from gateway.source import Source

    return Source(arguments.config or Path("fewer.yaml"), partial(load_config, arguments))


def with_listening(config: Config, arguments: argparse.Namespace) -> Config:
    """`config` with the `--host`, `--port` and `--workers` that were given."""
    from msgspec.structs import replace

    given = {"host": arguments.host, "port": arguments.port, "workers": arguments.workers}
    told = {field: value for field, value in given.items() if value is not None}
    if told.get("workers", 1) < 1:
        raise SetupError("--workers must be at least 1.")
    return replace(config, server=replace(config.server, **told))


def with_model(config: Config, model: str) -> Config:
    """`model`, a name of `fewer models` or a path, in place of every gguf model.

    Routes and fallback lists that named one of those name this one instead. A model that the
    configuration has already stays as it is described there.
    """
    from msgspec.structs import replace

    from gateway.config import ModelConfig

    name = _served_name(model)
    ours = set(config.gguf_models())
    described = config.models[name] if name in ours else ModelConfig(gguf=model)
    kept = {other: entry for other, entry in config.models.items() if other not in ours}
    models = {name: described, **kept}

    def renamed(old: str) -> str:
        return name if old in ours else old

    return replace(
        config,
        models={
            key: replace(entry, fallback=_without(key, map(renamed, entry.fallback)))
            for key, entry in models.items()
        },
        aliases={alias: renamed(target) for alias, target in config.aliases.items()},
        routes={
            key: replace(_without_choice(route, ours), model=renamed(route.model))
            for key, route in config.routes.items()
        },
    )


def _without_choice(route: RouteConfig, ours: set[str]) -> RouteConfig:
    """Where a gguf model may be chosen, there is nothing to choose any more."""
    from msgspec.structs import replace

    chooses = route.route is not None and not ours.isdisjoint(route.route.models)
    return replace(route, route=None) if chooses else route


def _served_name(model: str) -> str:
    """A path is served under its file's name, as `fewer models add` would call it."""
    from fewer.model_store import name_for

    path = Path(model)
    return name_for(path) if path.suffix == ".gguf" or len(path.parts) > 1 else model


def _without(name: str, names: map[str]) -> tuple[str, ...]:
    """Each once, in order, but `name`: nothing falls back to itself."""
    return tuple(dict.fromkeys(other for other in names if other != name))
