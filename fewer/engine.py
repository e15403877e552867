"""`fewer engine`: one model behind the engine's own server, without the gateway."""

from __future__ import annotations

import argparse
import logging
from typing import TYPE_CHECKING

from engine.protocol.errors import SetupError
from fewer import model_store, options, ports
from fewer.lifeline import Lifeline
from fewer.paths import engine_token, engine_token_in_shell

if TYPE_CHECKING:
    from engine.protocol.settings import EngineSettings
    from gateway.config import Config

DEFAULT_HOST = "127.0.0.1"


def configure(parser: argparse.ArgumentParser) -> None:
    options.add_config(parser)
    parser.add_argument(
        "--model",
        metavar="NAME|PATH",
        help="a model of the configuration or of `fewer models`, or a GGUF file",
    )
    parser.add_argument("--host", default=DEFAULT_HOST, help="default: %(default)s")
    parser.add_argument(
        "--port",
        type=int,
        default=options.DEFAULT_ENGINE_PORT,
        help="0 for a free one (default: %(default)s)",
    )
    options.add_executor(parser)
    options.add_kv_cache_dtype(parser)
    options.add_speculation(parser)
    for name in _number_settings():
        parser.add_argument(
            _option(name), type=int, metavar="N", help="overrides the configuration's"
        )
    options.add_supervised(parser)


def run(arguments: argparse.Namespace) -> int:
    lifeline = Lifeline() if arguments.supervised else None
    name, gguf, settings = selected(arguments)
    path = model_store.resolve(gguf)
    port = ports.claim(arguments.host, arguments.port, "--port")

    from engine.assembly import open_engine
    from engine.server.app import run as serve

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("fewer").setLevel(logging.INFO)
    serve(
        open_engine(path, settings, name=name),
        arguments.host,
        port,
        engine_token(),
        on_ready=lifeline.ready if lifeline else _tell_token,
    )
    return 0


def _tell_token() -> None:
    """To who started the engine alone: the gateway beside it knows the token already."""
    logging.getLogger("fewer.engine").info(
        'Requests need its token: -H "authorization: Bearer %s"', engine_token_in_shell()
    )


def selected(arguments: argparse.Namespace) -> tuple[str, str, EngineSettings]:
    """The model's name, its gguf entry, and the settings that it is to be served with."""
    from msgspec.structs import replace

    name, config = _model_and_config(arguments)
    given = {field: getattr(arguments, field) for field in _number_settings()}
    told = {field: value for field, value in given.items() if value is not None}
    for field, value in told.items():
        if value < (0 if field == "threads" else 1):
            raise SetupError(f"{_option(field)} must be at least 1, not {value}.")
    return name, config.models[name].gguf or name, replace(config.engine_settings(name), **told)


def _model_and_config(arguments: argparse.Namespace) -> tuple[str, Config]:
    """A model that the configuration knows leaves the rest of it as it is."""
    wanted = arguments.model
    config = options.load_config(argparse.Namespace(**{**vars(arguments), "model": None}))
    if wanted in config.gguf_models():
        return wanted, config
    if wanted is not None:
        config = options.with_model(config, wanted)
    match config.gguf_models():
        case [name]:
            return name, config
        case []:
            raise SetupError("The configuration has no gguf model. Name one with --model.")
        case names:
            raise SetupError(f"Choose one of {', '.join(names)} with --model.")


def _number_settings() -> list[str]:
    from engine.protocol.settings import EngineSettings

    return [field for field, kind in EngineSettings.__annotations__.items() if kind == "int"]


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"
