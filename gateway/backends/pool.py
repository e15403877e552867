"""All backends of a configuration, by the names of their models."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from engine.protocol.errors import ModelNotFound
from gateway.backends.base import Backend
from gateway.backends.breaker import GuardedBackend
from gateway.backends.engine import EngineBackend
from gateway.backends.limits import LimitedBackend
from gateway.backends.openai import OpenAIBackend
from gateway.backends.scripted import ScriptedBackend
from gateway.config import Config, ModelConfig

_UNSEEN = ModelConfig()
"""Holds, for `_recipe`, the defaults of the settings that no backend sees."""

_UNSEEN_SETTINGS = ("fallback", "price", "max_model_len", "timeout_s", "sampling")


class Engines(msgspec.Struct, frozen=True):
    """The engines that were started beside the gateway: a port for each model, on this machine.

    token: the secret that they share with the gateway
    """

    ports: dict[str, int] = {}
    token: str = ""

    def __repr__(self) -> str:
        return f"Engines({self.ports}, '***')"


class _Shared:
    """A backend, and how many configurations it serves.

    recipe: what it was made of; None for one that was given
    """

    def __init__(self, backend: Backend, recipe: ModelConfig | None = None) -> None:
        self.backend = backend
        self.recipe = recipe
        self.users = 1


class Backends:
    """Those of one configuration. Connections are only opened when they are first used.

    A configuration that takes the place of another shares with it, by `successor`, whatever
    backends stay the same, their connections and the state of their breakers with them.
    """

    def __init__(self, backends: Mapping[str, Backend], engines: Engines | None = None) -> None:
        self._shared = {name: _Shared(backend) for name, backend in backends.items()}
        self._engines = engines or Engines()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Backends {', '.join(map(repr, self.all().values()))}>"

    @classmethod
    def from_config(cls, config: Config, engine_port: int, engine_token: str) -> Backends:
        """engine_port: where `fewer serve` started the first gguf model's engine, the next one
        at the next port; engine_token: the secret of these engines.

        Raises `ConfigError` for a script that cannot be read.
        """
        ports = {name: engine_port + i for i, name in enumerate(config.gguf_models())}
        return cls({}, Engines(ports, engine_token)).successor(config)

    def successor(self, config: Config) -> Backends:
        """The backends of `config`: ours where their model has not changed, and new ones.

        Raises as `from_config` does; then nothing has changed.
        """
        new: dict[str, _Shared] = {}
        for name, model in config.models.items():
            recipe, known = _recipe(model), self._shared.get(name)
            if known is None or known.recipe not in (None, recipe):
                new[name] = _Shared(_backend(name, recipe, self._engines), recipe)
        following = Backends({}, self._engines)
        following._shared = {name: new.get(name) or self._join(name) for name in config.models}
        return following

    def get(self, name: str) -> Backend:
        """Raises `ModelNotFound`."""
        try:
            return self._shared[name].backend
        except KeyError:
            raise ModelNotFound(f"There is no model {name!r}.") from None

    def all(self) -> Mapping[str, Backend]:
        """Every backend, by its model's name, in file order."""
        return {name: shared.backend for name, shared in self._shared.items()}

    async def aclose(self) -> None:
        """Close, at the same time, all that no other configuration uses. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        for shared in self._shared.values():
            shared.users -= 1
        unused = [shared.backend for shared in self._shared.values() if shared.users == 0]
        await asyncio.gather(*(backend.aclose() for backend in unused))

    def _join(self, name: str) -> _Shared:
        self._shared[name].users += 1
        return self._shared[name]


def _recipe(model: ModelConfig) -> ModelConfig:
    """Only the settings that a backend is made of: a new price needs no new connection."""
    unseen = {setting: getattr(_UNSEEN, setting) for setting in _UNSEEN_SETTINGS}
    return msgspec.structs.replace(model, **unseen)


def _backend(name: str, model: ModelConfig, engines: Engines) -> Backend:
    return LimitedBackend(_unlimited(name, model, engines), model.max_concurrency)


def _unlimited(name: str, model: ModelConfig, engines: Engines) -> Backend:
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
            schemas=model.schemas == "accepted",
            reasoning_field=model.reasoning_field,
            max_connections=model.max_concurrency,
            first_event_timeout_s=model.first_token_timeout_s,
        )
        # Engines of ours need no breaker: their link knows whether they are there.
        return GuardedBackend(upstream)
    if model.engine is not None:
        return EngineBackend(name, model.engine, api_key or engines.token)
    return EngineBackend(name, f"ws://127.0.0.1:{engines.ports[name]}/v1/engine", engines.token)
