"""Which models a request is put to, as its policy `route` has decided and as they can take it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from gateway.backends.base import Backend
from gateway.candidates import fits, fitting
from gateway.config import Config
from gateway.routes import Route, candidates_of
from gateway.verdict import Verdict
from policies.request import Request
from policies.route import Cascade, RoutePolicy


class Beginning(msgspec.Struct, frozen=True):
    """The model that begins, and answers as long as it is sure.

    verdict: which says so
    """

    model: str
    cascade: Cascade
    verdict: Verdict


class Plan(msgspec.Struct, frozen=True):
    """names:     models to try, in order, until one of them answers
    beginning: for a cascade, what comes before them
    """

    names: tuple[str, ...]
    beginning: Beginning | None = None

    @property
    def models(self) -> tuple[str, ...]:
        """All that may come to answer, in the order in which they are asked."""
        return self.names if self.beginning is None else (self.beginning.model, *self.names)

    @property
    def intended(self) -> tuple[str, ...]:
        """Those of them that are no fallback."""
        return self.models[: 1 if self.beginning is None else 2]

    @property
    def terms(self) -> dict[str, Any] | None:
        """Of the cascade, as plain values: who answers, and so what, changes with them."""
        return None if self.beginning is None else msgspec.structs.asdict(self.beginning.cascade)


def plan_of(
    request: Request,
    route: Route,
    verdicts: Iterable[Verdict],
    backends: dict[str, Backend],
    config: Config,
) -> Plan:
    """`request` as it is after all policies. Raises `InvalidRequest` as `fitting` does."""
    verdict = next((v for v in verdicts if v.applied is not None and v.applied.models), None)
    if verdict is None or verdict.applied is None:
        return Plan(tuple(fitting(request, route.candidates, backends, config)))
    first, *after = verdict.applied.models
    names = _able(request, route, after[0] if after else first, backends, config)
    match verdict.policy:
        case RoutePolicy(cascade=Cascade() as cascade) if after and first not in names[:1]:
            if _able(request, route, first, backends, config)[0] == first:
                return Plan(names, Beginning(first, cascade, verdict))
        case _:
            pass
    return Plan(names)


def _able(
    request: Request, route: Route, model: str, backends: dict[str, Backend], config: Config
) -> tuple[str, ...]:
    """The model, its fallbacks, and at last the route's own, as far as they can take it.

    A chosen model that is too small is passed over: the route's own would have taken it.
    """
    names = dict.fromkeys((*candidates_of(config, model), *route.candidates))
    able = fitting(request, tuple(names), backends, config)
    if len(able) > 1 and not fits(request, able[0], config):
        able = able[1:]
    return tuple(able)
