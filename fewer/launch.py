"""What `fewer serve` is going to start: models found, ports claimed, commands spelled out."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.protocol.errors import ModelFileError
from engine.protocol.settings import EngineSettings
from fewer import model_store, options, ports
from gateway.config import Config

LOOPBACK = "127.0.0.1"
"""Engines are for the gateway beside them alone."""


@dataclass(frozen=True, slots=True)
class EngineLaunch:
    """One engine process. `name` is the model's in the configuration."""

    name: str
    path: Path
    settings: EngineSettings
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
        [
            _engine(arguments, config, name, engine_port + place, threads)
            for place, (name, threads) in enumerate(_threads(config, names).items())
        ],
        [*_program("gateway", arguments), *_gateway_words(arguments, config, port, engine_port)],
    )


def _threads(config: Config, names: list[str]) -> dict[str, int]:
    """Threads of each engine. `auto` of one engine is its own business; several share the cores,
    the first ones the more: with a thread on each core for every engine they would wait for one
    another in the middle of each step."""
    if config.engine.threads or len(names) < 2:
        return dict.fromkeys(names, config.engine.threads)
    from engine.runner.cores import usable_cores

    each, more = divmod(usable_cores(), len(names))
    return {name: max(1, each + (place < more)) for place, name in enumerate(names)}


def _engine(
    arguments: argparse.Namespace, config: Config, name: str, port: int, threads: int
) -> EngineLaunch:
    settings = msgspec.structs.replace(config.engine_settings(name), threads=threads)
    # With --model the child would not find our name for it in the file.
    command = [*_program("engine", arguments), "--model", arguments.model or name]
    command += ["--host", LOOPBACK, "--port", str(port)]
    for field, value in msgspec.structs.asdict(settings).items():
        command += [f"--{field.replace('_', '-')}", str(value)]
    return EngineLaunch(name, _model_file(config.models[name].gguf or name), settings, command)


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
