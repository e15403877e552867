"""What of a new configuration can hold in a gateway that runs, and what waits for a restart.

The engines run in processes of their own and were started with what the configuration said
then. A gguf model that has no such process is left out, and whatever leads to it stays as it
was: nobody is sent to an engine that is not there.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from gateway.config import Config, LimitsConfig, ModelConfig, RouteConfig

_FIXED_LIMITS = ("store", "deadline_ms")
_FIXED_SERVER = ("host", "port", "workers", "drain_s")


class Applicable(msgspec.Struct, frozen=True):
    """config:    what can hold from now on
    postponed: the keys, as `section.name.key`, whose new values wait for a restart
    """

    config: Config
    postponed: list[str]


def applicable(wanted: Config, current: Config, first: Config) -> Applicable:
    """wanted: as the file says now; current: as it holds; first: as the file said at the start,
    when the engines were started."""
    models = _models(wanted, current, first)
    routes = _routes(wanted, current, models)
    config = replace(
        wanted,
        server=replace(wanted.server, **{f: getattr(current.server, f) for f in _FIXED_SERVER}),
        store=current.store,
        cache=current.cache,
        records=current.records,
        responses=current.responses,
        ledger=replace(wanted.ledger, store=current.ledger.store),
        limits=_limits(wanted.limits, current.limits),
        engine=current.engine,
        models=_without_strangers(models),
        routes=routes,
        aliases=_aliases(wanted, current, {*models, *routes}),
        default_route=_first_of(routes, wanted.default_route, current.default_route),
    )
    if not models:
        config = replace(current, server=config.server)
    return Applicable(config, [*_postponed(wanted, first)])


def _limits(wanted: LimitsConfig, current: LimitsConfig) -> LimitsConfig:
    """The store that is in use stays."""
    return replace(wanted, **{field: getattr(current, field) for field in _FIXED_LIMITS})


def _models(wanted: Config, current: Config, first: Config) -> dict[str, ModelConfig]:
    """Every model that is wanted and can be had; one whose new form cannot is as it was."""
    models: dict[str, ModelConfig] = {}
    for name, model in wanted.models.items():
        if model.gguf is None:
            models[name] = model
        elif _runs(name, model, first):
            models[name] = replace(model, max_model_len=first.engine_settings(name).max_model_len)
        elif name in current.models:
            models[name] = current.models[name]
    return models


def _routes(
    wanted: Config, current: Config, models: dict[str, ModelConfig]
) -> dict[str, RouteConfig]:
    """Every route that is wanted and whose model is there, which is added for one that stays."""
    routes: dict[str, RouteConfig] = {}
    for name, route in wanted.routes.items():
        if route.model not in models and name in current.routes:
            route = current.routes[name]
            models.setdefault(route.model, current.models[route.model])
        if route.model in models:
            route = _with_models(route, current.routes.get(name), models)
            own = models[route.model].gguf is not None
            # The window of an engine that runs is what it was started with.
            routes[name] = replace(route, max_model_len=None) if own else route
    return routes


def _with_models(
    route: RouteConfig, current: RouteConfig | None, models: Mapping[str, ModelConfig]
) -> RouteConfig:
    """Where a model that it may choose is not there, it chooses as before, or not at all."""
    if route.route is None or all(model in models for model in route.route.models):
        return route
    before = current.route if current is not None else None
    stays = before is not None and all(model in models for model in before.models)
    return replace(route, route=before if stays else None)


def _without_strangers(models: Mapping[str, ModelConfig]) -> dict[str, ModelConfig]:
    """Fallback lists name only models that are there."""
    return {
        name: replace(model, fallback=tuple(other for other in model.fallback if other in models))
        for name, model in models.items()
    }


def _aliases(wanted: Config, current: Config, known: set[str]) -> dict[str, str]:
    found = {
        alias: _first_of(known, target, current.aliases.get(alias))
        for alias, target in wanted.aliases.items()
    }
    return {alias: target for alias, target in found.items() if target is not None}


def _first_of(
    known: set[str] | Mapping[str, object], wanted: str | None, current: str | None
) -> str | None:
    return next((name for name in (wanted, current) if name in known), None)


def _postponed(wanted: Config, first: Config) -> list[str]:
    keys = [
        f"server.{field}"
        for field in _FIXED_SERVER
        if getattr(wanted.server, field) != getattr(first.server, field)
    ]
    if wanted.ledger.store != first.ledger.store:
        keys.append("ledger.store")
    keys += [
        f"limits.{field}"
        for field in _FIXED_LIMITS
        if getattr(wanted.limits, field) != getattr(first.limits, field)
    ]
    whole = ("store", "cache", "records", "responses")
    keys += [key for key in whole if getattr(wanted, key) != getattr(first, key)]
    keys += [
        f"engine.{field}"
        for field, value in msgspec.structs.asdict(wanted.engine).items()
        if value != getattr(first.engine, field)
    ]
    same_engine = replace(wanted, engine=first.engine)
    for name in wanted.gguf_models():
        if not _runs(name, wanted.models[name], first):
            keys.append(f"models.{name}.gguf")
        elif same_engine.engine_settings(name) != first.engine_settings(name):
            keys.append(f"models.{name}.max_model_len")
    return keys


def _runs(name: str, model: ModelConfig, first: Config) -> bool:
    """Was an engine started for this very model?"""
    return name in first.models and first.models[name].gguf == model.gguf
