"""Which route a request takes: the names that clients use, and what stands behind them."""

from __future__ import annotations

import msgspec

from engine.protocol.errors import Forbidden, InvalidRequest, ModelNotFound
from gateway.config import Config, RouteConfig
from gateway.tenants import Tenant

SHOWN_NAME_CHARS = 64


class Route(msgspec.Struct, frozen=True):
    """candidates: models to try, in order: the route's own, then its fallbacks."""

    name: str
    config: RouteConfig
    candidates: tuple[str, ...]


class Routes:
    """Every name a client may give, resolved once.

    A model that is named directly goes through the first route that it serves, so that naming
    it does not get around the route's policies. A model behind no route is a route of its own.
    """

    def __init__(self, config: Config) -> None:
        routes = config.routes
        served = {route.model for route in routes.values()}
        routes = routes | {
            model: RouteConfig(model)
            for model in config.models
            if model not in served and model not in routes
        }
        self.by_name = {
            name: Route(name, route, (route.model, *config.models[route.model].fallback))
            for name, route in routes.items()
        }
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
        if not may_use(tenant, found):
            raise Forbidden(f"This key may not use the route {found!r}.", param="model")
        return self.by_name[found]

    def public_names(self, tenant: Tenant) -> list[str]:
        """Routes and aliases that the tenant may use, in file order."""
        return [name for name in self._public if may_use(tenant, self._names[name])]

    def public_routes(self) -> dict[str, str]:
        """The names that `/v1/models` lists, and the route each stands for."""
        return {name: self._names[name] for name in self._public}

    def _listed(self, tenant: Tenant) -> str:
        return ", ".join(self.public_names(tenant)) or "none for this key"


def may_use(tenant: Tenant, route: str) -> bool:
    """No list means every route."""
    return tenant.allowed_routes is None or route in tenant.allowed_routes


def _all_names(config: Config, routes: dict[str, Route]) -> dict[str, str]:
    """Every name that is accepted, and the route it stands for."""
    names = {name: name for name in routes}
    for name, route in routes.items():
        names.setdefault(route.config.model, name)
    return names | {alias: names[target] for alias, target in config.aliases.items()}
