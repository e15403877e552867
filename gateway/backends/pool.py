"""All backends of a configuration, by the names of their models."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from engine.protocol.errors import ModelNotFound
from gateway.backends.base import Backend
from gateway.backends.breaker import GuardedBackend
from gateway.backends.engine import EngineBackend
from gateway.backends.limits import LimitedBackend
from gateway.backends.openai import OpenAIBackend
from gateway.backends.scripted import ScriptedBackend
from gateway.config import Config, ModelConfig


class Backends:
    """Made once a process; connections are only opened when they are first used."""

    def __init__(self, backends: Mapping[str, Backend]) -> None:
        self._backends = dict(backends)

    def __repr__(self) -> str:
        return f"<Backends {', '.join(map(repr, self._backends.values()))}>"

    @classmethod
    def from_config(cls, config: Config, engine_port: int, engine_token: str) -> Backends:
        """engine_port: where `fewer serve` started the first gguf model's engine, the next one
        at the next port; engine_token: the secret of these engines.

        Raises `ConfigError` for a script that cannot be read.
        """
        ports = {name: engine_port + i for i, name in enumerate(config.gguf_models())}
        return cls(
            {
                name: LimitedBackend(
                    _backend(name, model, ports.get(name), engine_token), model.max_concurrency
                )
                for name, model in config.models.items()
            }
        )

    def get(self, name: str) -> Backend:
        """Raises `ModelNotFound`."""
        try:
            return self._backends[name]
        except KeyError:
            raise ModelNotFound(f"There is no model {name!r}.") from None

    def all(self) -> Mapping[str, Backend]:
        """Every backend, by its model's name, in file order."""
        return self._backends

    async def aclose(self) -> None:
        """Close all at the same time."""
        await asyncio.gather(*(backend.aclose() for backend in self._backends.values()))


def _backend(name: str, model: ModelConfig, port: int | None, engine_token: str) -> Backend:
    api_key = model.api_key.reveal() if model.api_key is not None else None
    if model.scripted is not None:
        return ScriptedBackend(name, model.scripted)
    if model.openai is not None:
        upstream = OpenAIBackend(
            name,
            model.openai,
            model=model.model or name,
            api_key=api_key,
            images=model.images == "accepted",
            max_connections=model.max_concurrency,
            first_event_timeout_s=model.first_token_timeout_s,
        )
        # Engines of ours need no breaker: their link knows whether they are there.
        return GuardedBackend(upstream)
    if model.engine is not None:
        return EngineBackend(name, model.engine, api_key or engine_token)
    return EngineBackend(name, f"ws://127.0.0.1:{port}/v1/engine", engine_token)
