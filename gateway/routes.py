"""Which route a request takes: the names that clients use, and what stands behind them."""

from __future__ import annotations

import msgspec

from engine.protocol.errors import Forbidden, InvalidRequest, ModelNotFound
from gateway.config import Config, RouteConfig
from gateway.tenants import Tenant

SHOWN_NAME_CHARS = 64


class Route(msgspec.Struct, frozen=True):
    """candidates: models to try, in order: the route's own, then its fallbacks
    chosen:     models that its policy `route` may choose in their place, with their fallbacks
    """

    name: str
    config: RouteConfig
    candidates: tuple[str, ...]
    chosen: tuple[str, ...] = ()

    @property
    def models(self) -> tuple[str, ...]:
        """All that may come to answer, each once, the route's own first."""
        return tuple(dict.fromkeys((*self.candidates, *self.chosen)))


class Routes:
    """Every name a client may give, resolved once.

    A model that is named directly answers itself, but under the first route that may use it, so
    that naming it does not get around policies. A model that no route uses is one of its own.

    by_name: the routes, in file order
    """

    def __init__(self, config: Config) -> None:
        self.by_name = {
            name: Route(name, route, candidates_of(config, route.model), _chosen(config, route))
            for name, route in config.routes.items()
        }
        used = {model for route in self.by_name.values() for model in route.models}
        for model in config.models:
            if model not in used and model not in self.by_name:
                own = Route(model, RouteConfig(model), candidates_of(config, model))
                self.by_name[model] = own
        self._names = _all_names(config, self.by_name)
        self._public = [*(config.routes or self.by_name), *config.aliases]
        self._default = config.default_route
        if self._default is None and len(self.by_name) == 1:
            self._default = next(iter(self.by_name))

    def match(self, model: str, header: str | None, tenant: Tenant) -> Route:
        """The route that the header x-fewer-route names, else the model, else the default.

        Raises `ModelNotFound` with the names there are, and `Forbidden` where the key may not.
        """
        name = header or model or self._default
        if name is None:
            raise InvalidRequest(
                f"model is missing. Known are: {self._listed(tenant)}.", param="model"
            )
        found = self._names.get(name)
        if found is None:
            raise ModelNotFound(
                f"There is no model or route {name[:SHOWN_NAME_CHARS]!r}. "
                f"Known are: {self._listed(tenant)}.",
                param=None if header else "model",
            )
        if not may_use(tenant, found.name):
            raise Forbidden(f"This key may not use the route {found.name!r}.", param="model")
        return found

    def public_names(self, tenant: Tenant) -> list[str]:
        """Routes and aliases that the tenant may use, in file order."""
        return [name for name in self._public if may_use(tenant, self._names[name].name)]

    def named(self, name: str) -> Route:
        """What one of `public_names` stands for."""
        return self._names[name]

    def _listed(self, tenant: Tenant) -> str:
        return ", ".join(self.public_names(tenant)) or "none for this key"


def may_use(tenant: Tenant, route: str) -> bool:
    """No list means every route."""
    return tenant.allowed_routes is None or route in tenant.allowed_routes


def candidates_of(config: Config, model: str) -> tuple[str, ...]:
    """The model, and then its fallbacks."""
    return (model, *config.models[model].fallback)


def _chosen(config: Config, route: RouteConfig) -> tuple[str, ...]:
    return tuple(name for model in route.chosen for name in candidates_of(config, model))


def _all_names(config: Config, routes: dict[str, Route]) -> dict[str, Route]:
    """Every name that is accepted, and the route it stands for."""
    names = dict(routes)
    for model in config.models:
        under = next((route for route in routes.values() if model in route.models), None)
        if under is not None and model not in names:
            names[model] = Route(under.name, under.config, candidates_of(config, model))
    return names | {alias: names[target] for alias, target in config.aliases.items()}
