"""What the models of a launch need, read from their files while the engines load them."""

from __future__ import annotations

from engine.fit import fit_line
from engine.protocol.errors import ConfigError
from engine.runner.base import ModelShape
from engine.runner.registry import shape_of
from engine.weights.gguf import GgufFile
from fewer.launch import Launch
from fewer.machine import free_memory_bytes
from gateway.config import Config


def survey(launch: Launch) -> dict[str, str]:
    """What fits into this machine, by model, one line each.

    Raises `ModelFileError` for a file that cannot be served, and `ConfigError` for a length
    that was asked of a model that has not got it.
    """
    free_bytes, lines = free_memory_bytes(), {}
    for engine in launch.engines:
        settings = engine.settings
        shape = shape_of(GgufFile.open(engine.path), settings.executor, settings.kv_cache_dtype)
        check_window(launch.config, engine.name, shape)
        lines[engine.name] = fit_line(shape, settings, name=engine.name, memory_bytes=free_bytes)
    return lines


def check_window(config: Config, name: str, shape: ModelShape) -> None:
    """Refuse a length that somebody asked of this very model and that it has not got.

    The setting that holds for all engines is merely cut to the window of each.
    """
    asked = {f"models.{name}": config.models[name].max_model_len or 0}
    for key, route in config.routes.items():
        if name in (route.model, *route.chosen):
            asked[f"routes.{key}"] = route.max_model_len or 0
    for key, tokens in asked.items():
        if tokens > shape.context_length:
            raise ConfigError(
                f"{key}.max_model_len: {tokens} is above the window of {name}. "
                f"Set it to {shape.context_length} or less."
            )
