"""What must hold of a route's settings beyond their types. Each check fails at the first fault."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from engine.protocol.errors import InvalidRequest, SetupError
from engine.protocol.sampling import Sampling
from gateway.budgets.limits import Limits
from gateway.config_file import Document, suggestion
from gateway.config_policies import HistoryConfig
from gateway.config_sections import Config, ModelConfig, RouteConfig, SamplingConfig
from policies.facts import FACT_TOKENS


def check_sampling(
    document: Document, key: tuple[str, ...], sampling: SamplingConfig | None
) -> None:
    """Held to the same ranges as what clients send."""
    if sampling is None:
        return
    try:
        Sampling(**sampling.given()).validate()  # type: ignore[arg-type]
    except InvalidRequest as error:
        name = error.param or ""
        document.fail((*key, "sampling", name), error.message.removeprefix(f"{name} "))


def check_limits(document: Document, config: Config) -> None:
    """A budget of dollars needs models that cost some: all that may come to answer."""
    _check_dollars(document, ("limits", "each_tenant"), config.limits.each_tenant, config.models)
    for name, route in config.routes.items():
        asked = [route.model, *route.chosen]
        if route.history is not None and route.history.model is not None:
            asked.append(route.history.model)
        asked += [other for model in asked for other in config.models[model].fallback]
        answering = {model: config.models[model] for model in asked}
        _check_dollars(document, ("routes", name, "limits"), route.limits, answering)


def _check_dollars(
    document: Document,
    key: tuple[str, ...],
    limits: Limits | None,
    models: Mapping[str, ModelConfig],
) -> None:
    if limits is None or limits.budget_dollars is None:
        return
    for name, model in models.items():
        if model.price is None:
            document.fail(
                (*key, "budget_dollars"),
                f"needs a price of the model {name}: models.{name}.price.",
            )


def check_history(
    document: Document, key: tuple[str, ...], route: RouteConfig, config: Config
) -> None:
    """The marks must be apart, and the upper one in reach."""
    history = route.history
    if history is None:
        return
    if history.low_tokens >= history.high_tokens:
        document.fail(
            (*key, "low_tokens"),
            f"must be below high_tokens ({history.high_tokens}), best no more than half of it.",
        )
    window = config.window(route.model)
    if window is not None and history.high_tokens >= window:
        document.fail(
            (*key, "high_tokens"),
            f"must be below the {window} tokens that {route.model} takes, by the longest answer.",
        )
    _check_record(document, key, history, config)


def _check_record(
    document: Document, key: tuple[str, ...], history: HistoryConfig, config: Config
) -> None:
    """Its length leaves room for turns, and who is to write it can."""
    if history.strategy == "window":
        return
    told_tokens = history.summary_tokens
    if history.strategy == "tiered":
        told_tokens += history.facts * FACT_TOKENS
    if told_tokens * 2 > history.low_tokens:
        document.fail(
            (*key, "summary_tokens"),
            f"leaves too little of low_tokens ({history.low_tokens}): record and facts may take "
            f"half of it, and come to {told_tokens}.",
        )
    if history.model is not None and history.model not in config.models:
        document.fail(
            (*key, "model"),
            f"there is no {history.model!r}.{suggestion(history.model, config.models)}",
        )


def read_schema(document: Document, key: tuple[str, ...], value: Any, folder: Path) -> Any:
    """A JSON Schema in place of the path of a file with it; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        schema = msgspec.json.decode((folder / value).read_bytes())
    except OSError as error:
        document.fail(key, f"{value} cannot be read: {error.strerror}.")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        document.fail(key, f"{value} is not JSON: {error}.")
    if not isinstance(schema, dict):
        document.fail(key, f"{value} is not a JSON Schema: it must hold an object.")
    return schema


def check_output(
    document: Document, key: tuple[str, ...], route: RouteConfig, config: Config
) -> None:
    """What answers look like, and how long they are."""
    budget, shape = route.budget, route.shape
    if budget is not None and budget.learn is not None and not budget.holdout:
        document.fail(
            (*key, "budget", "learn"),
            "needs a holdout above 0: lengths are learned from answers that it does not cut.",
        )
    if budget is not None and budget.reasoning_tokens is not None:
        named = [model.reasoning_field for model in config.models.values()]
        if not any(named):
            document.fail(
                (*key, "budget", "reasoning_tokens"),
                "needs a model that can be told: one with a reasoning_field.",
            )
    if shape is None:
        return
    given = [name for name in _SHAPES if getattr(shape, name) is not None]
    if shape.reasoning == "hidden":
        given.append("reasoning")
    if not given:
        document.fail((*key, "shape"), f"says nothing: give {', '.join(_SHAPES)} or reasoning.")
    if shape.answer is not None and len(given) > 1:
        document.fail((*key, "shape", "answer"), "leaves no place for anything beside it.")


def check_agent(document: Document, key: tuple[str, ...], route: RouteConfig) -> None:
    """There must be a limit."""
    agent = route.agent
    if agent is not None and agent.max_tool_rounds is None and agent.max_run_tokens is None:
        document.fail((*key, "agent"), "sets no limit: give max_tool_rounds or max_run_tokens.")


def check_cache(document: Document, key: tuple[str, ...], route: RouteConfig) -> None:
    """Similar requests have the answers that the exact cache keeps, and are found by embedding."""
    semantic = route.cache.semantic
    if semantic is None or semantic.mode == "disabled":
        return
    if route.cache.exact.mode != "active":
        document.fail(key, "uses what cache.exact keeps: set cache.exact.mode to active.")
    from gateway.embedding import bundled

    try:
        bundled()
    except SetupError as error:
        document.fail(key, error.message)


_SHAPES = ("brevity", "instruction", "schema", "answer")
