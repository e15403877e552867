"""What `fewer serve` is going to start: models found, ports claimed, commands spelled out."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.fit import fit_line
from engine.protocol.errors import ConfigError, ModelFileError
from engine.runner.base import ModelShape
from engine.runner.registry import shape_of
from engine.weights.gguf import GgufFile
from fewer import model_store, options, ports
from fewer.machine import free_memory_bytes
from gateway.config import Config

LOOPBACK = "127.0.0.1"
"""Engines are for the gateway beside them alone."""


@dataclass(frozen=True, slots=True)
class EngineLaunch:
    """One engine process.

    name: the model's in the configuration
    fits: what of it fits into this machine, in one line
    """

    name: str
    fits: str
    command: list[str]


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything about one `fewer serve`, before anything has been started.

    url: the gateway's address as a browser on this machine writes it
    """

    config: Config
    url: str
    engines: list[EngineLaunch]
    gateway: list[str]


def prepare(arguments: argparse.Namespace) -> Launch:
    """Check what can be checked and pull what is missing. Raises `SetupError`, starts nothing."""
    config = options.with_listening(options.load_config(arguments), arguments)
    host, names = config.server.host, config.gguf_models()
    port = ports.claim(host, config.server.port, "--port")
    engine_port = arguments.engine_port
    if names:
        engine_port = ports.claim(LOOPBACK, engine_port, "--engine-port", len(names))
    return Launch(
        config,
        f"http://{ports.address_to_try(host, port)}",
        [_engine(arguments, config, name, engine_port + place) for place, name in enumerate(names)],
        [*_program("gateway", arguments), *_gateway_words(arguments, config, port, engine_port)],
    )


def _engine(arguments: argparse.Namespace, config: Config, name: str, port: int) -> EngineLaunch:
    settings = config.engine_settings(name)
    file = GgufFile.open(_model_file(config.models[name].gguf or name))
    shape = shape_of(file, settings.executor)
    _check_window(config, name, shape)
    # With --model the child would not find our name for it in the file.
    command = [*_program("engine", arguments), "--model", arguments.model or name]
    command += ["--host", LOOPBACK, "--port", str(port)]
    for field, value in msgspec.structs.asdict(settings).items():
        command += [f"--{field.replace('_', '-')}", str(value)]
    fits = fit_line(shape, settings, name=name, memory_bytes=free_memory_bytes())
    return EngineLaunch(name, fits, command)


def _check_window(config: Config, name: str, shape: ModelShape) -> None:
    """Refuse a length that somebody asked of this very model and that it has not got.

    The setting that holds for all engines is merely cut to the window of each.
    """
    asked = {f"models.{name}": config.models[name].max_model_len or 0}
    for key, route in config.routes.items():
        if route.model == name:
            asked[f"routes.{key}"] = route.max_model_len or 0
    for key, tokens in asked.items():
        if tokens > shape.context_length:
            raise ConfigError(
                f"{key}.max_model_len: {tokens} is above the window of {name}. "
                f"Set it to {shape.context_length} or less."
            )


def _model_file(gguf: str) -> Path:
    """The file of a model; a published one that is not here yet is pulled."""
    try:
        return model_store.resolve(gguf)
    except ModelFileError:
        if gguf not in model_store.PUBLISHED:
            raise
    from fewer.models import pull_showing_progress

    return pull_showing_progress(gguf)


def _program(command: str, arguments: argparse.Namespace) -> list[str]:
    config = ["--config", str(arguments.config)] if arguments.config else []
    return [sys.executable, "-m", "fewer", command, "--supervised", *config]


def _gateway_words(
    arguments: argparse.Namespace, config: Config, port: int, engine_port: int
) -> list[str]:
    words = ["--host", config.server.host, "--port", str(port)]
    words += ["--workers", str(config.server.workers), "--engine-port", str(engine_port)]
    return [*words, "--model", arguments.model] if arguments.model else words
