"""What a request may use at most, as far as that can be known before it runs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec

from gateway.budgets.limits import NANODOLLARS, Field
from gateway.config import Config, Price
from gateway.estimate import input_tokens
from gateway.routes import Route
from gateway.stores.budget import MAX_AMOUNT
from gateway.telemetry.metrics import Spent
from policies.counting import request_tokens
from policies.request import Request

UNCAPPED_OUTPUT_TOKENS = 4096
"""Reserved for each choice of a request without a cap, to a model of which no window is known."""


class Need(msgspec.Struct, frozen=True):
    """requests: 0 for what another request has already counted for."""

    requests: int = 1
    prompt_tokens: int = 0
    output_tokens: int = 0
    nanodollars: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    def amount(self, field: Field) -> int:
        """Of what the limit counts, as far as stores can."""
        if field == "requests_per_minute":
            return self.requests
        return min(self.nanodollars if field == "budget_dollars" else self.tokens, MAX_AMOUNT)


def need_of(request: Request, route: Route, config: Config) -> Need:
    """The prompt by estimate, and what all choices may produce; money by the dearest model that
    may come to answer."""
    prompt_tokens = request_tokens(request)
    cap = request.most_tokens
    if cap is None:
        window = config.window(route.candidates[0])
        longest = prompt_tokens // max(1, len(request.prompts))
        cap = UNCAPPED_OUTPUT_TOKENS if window is None else max(1, window - longest)
    made = max(request.n, _count(request.parameters.get("best_of")))
    output_tokens = cap * made * max(1, len(request.prompts))
    return _priced(Need(1, prompt_tokens, output_tokens), route, config)


def need_of_embeddings(given: str | list[Any], route: Route, config: Config) -> Need:
    return _priced(Need(1, input_tokens(given)), route, config)


def spent_need(spent: Spent, dollars: float | None) -> Need:
    """What was used in the end. dollars: None where nothing has a price"""
    nanodollars = math.ceil((dollars or 0.0) * NANODOLLARS)
    return Need(1, spent.prompt_tokens, spent.completion_tokens, nanodollars)


def _priced(need: Need, route: Route, config: Config) -> Need:
    prices = (config.models[name].price for name in route.models)
    return msgspec.structs.replace(need, nanodollars=_nanodollars(need, prices))


def _nanodollars(need: Need, prices: Iterable[Price | None]) -> int:
    most = 0
    for price in prices:
        if price is None:
            continue
        thousandths = price.input * need.prompt_tokens + price.output * need.output_tokens
        # What a machine's hour will have cost is only known at the end: but a budget that is used
        # up lets nothing through.
        cost = 1 if price.machine_hour is not None else math.ceil(thousandths * 1000)
        most = max(most, cost)
    return most


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 1
