"""What must hold of a route's setting `route`, and the router file that it names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from engine.protocol.errors import SetupError
from gateway.config_file import Document, Key, suggestion
from gateway.config_policies import RoutingConfig, RuleConfig
from gateway.config_sections import RouteConfig
from gateway.routing.loading import read_model, router_of
from gateway.routing.patterns import why_slow
from policies.features import SCRIPTS
from policies.router_model import RouterModel


def read_routers(document: Document, folder: Path) -> None:
    """Put in place of each router's path what the file holds, before types are checked."""
    routes = document.data.get("routes")
    for name, route in routes.items() if isinstance(routes, dict) else ():
        settings = route.get("route") if isinstance(route, dict) else None
        if isinstance(settings, dict) and settings.get("router") is not None:
            key = ("routes", name, "route", "router")
            model = _router(document, key, settings["router"], folder)
            settings["router"] = msgspec.to_builtins(model)


def check_routing(
    document: Document, key: Key, route: RouteConfig, models: Mapping[str, object]
) -> None:
    """Fails at the first fault."""
    settings = route.route
    if settings is None:
        return
    for place, rule in enumerate(settings.rules):
        _check_rule(document, (*key, "rules", str(place)), rule, models)
    for name in ("weak", "strong"):
        if (model := getattr(settings, name)) is not None:
            _known(document, (*key, name), model, models)
    _check_pair(document, key, settings)
    _check_threshold(document, key, settings)
    if settings.router is not None and settings.mode != "disabled":
        _check_embedding(document, (*key, "router"), settings.router)


def _router(document: Document, key: Key, path: object, folder: Path) -> RouterModel:
    if not isinstance(path, str):
        document.fail(key, "must be the path of a file that `fewer route train` has written.")
    try:
        return read_model(folder / path)
    except SetupError as error:
        document.fail(key, error.message)


def _check_rule(
    document: Document, key: Key, rule: RuleConfig, models: Mapping[str, object]
) -> None:
    _known(document, (*key, "model"), rule.model, models)
    if rule.script is not None and rule.script not in SCRIPTS:
        document.fail((*key, "script"), f"is no script.{suggestion(rule.script, SCRIPTS)}")
    least, most = rule.min_prompt_tokens, rule.max_prompt_tokens
    if least is not None and most is not None and least > most:
        document.fail(
            (*key, "max_prompt_tokens"), f"must not be below min_prompt_tokens ({least})."
        )
    try:
        why = why_slow(rule.pattern or "")
    except (re.error, OverflowError, RecursionError) as error:
        document.fail((*key, "pattern"), f"is no regular expression: {error}.")
    if why is not None:
        document.fail((*key, "pattern"), f"{why}.")


def _check_pair(document: Document, key: Key, settings: RoutingConfig) -> None:
    choosers = [name for name in ("router", "cascade") if getattr(settings, name) is not None]
    missing = [name for name in ("weak", "strong") if getattr(settings, name) is None]
    if choosers and missing:
        document.fail((*key, choosers[0]), f"needs {' and '.join(missing)} beside it.")
    if not choosers and len(missing) < 2:
        name = "strong" if "weak" in missing else "weak"
        document.fail((*key, name), "is chosen by router or cascade; give one of them.")
    if choosers and settings.weak == settings.strong:
        document.fail((*key, "strong"), "must be another model than weak.")
    if not (settings.rules or choosers):
        document.fail(key, "says nothing: give rules, router or cascade.")


def _check_threshold(document: Document, key: Key, settings: RoutingConfig) -> None:
    given = [n for n in ("threshold", "strong_share") if getattr(settings, n) is not None]
    if settings.router is None and given:
        document.fail((*key, given[0]), "is the router's; give router.")
    if settings.router is not None and len(given) != 1:
        document.fail(
            (*key, "router"), "needs exactly one of threshold and strong_share beside it."
        )


def _check_embedding(document: Document, key: Key, model: RouterModel) -> None:
    try:
        router_of(model)
    except SetupError as error:
        document.fail(key, error.message)


def _known(document: Document, key: Key, name: str, models: Mapping[str, object]) -> None:
    if name not in models:
        document.fail(key, f"there is no {name!r}.{suggestion(name, models)}")
