"""`fewer check`: find a configuration's mistakes before they are served, and sum it up."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fewer import options

if TYPE_CHECKING:
    from gateway.config import Config, ModelConfig, RouteConfig


def configure(parser: argparse.ArgumentParser) -> None:
    options.add_config(parser)


def run(arguments: argparse.Namespace) -> int:
    print(summary(options.load_config(arguments)))
    return 0


def summary(config: Config) -> str:
    """The configuration in a few lines: what listens, what answers, and what is still missing."""
    server = config.server
    lines = [
        f"listens   {server.host} port {server.port}, {server.workers} worker(s)",
        f"keeps     {config.store}",
    ]
    lines += [f"model     {name}: {_model(config, name)}" for name in config.models]
    lines += [f"route     {name}: {_route(route)}" for name, route in config.routes.items()]
    lines += [f"alias     {alias}: {target}" for alias, target in config.aliases.items()]
    lines += [f"default   {config.default_route or 'none: every request must name its model'}"]
    return "\n".join([*lines, "The configuration is good."])


def _model(config: Config, name: str) -> str:
    model = config.models[name]
    if model.gguf is not None:
        window = config.engine_settings(name).max_model_len
        text = f"our engine, {_file(model.gguf)}, {window:,} tokens"
    elif model.engine is not None:
        text = f"our engine at {model.engine}"
    elif model.openai is not None:
        text = f"{model.model or name} at {model.openai}, {_key(model)}"
    else:
        text = f"plays {model.scripted}"
    return text + (f", falls back to {', '.join(model.fallback)}" if model.fallback else "")


def _file(gguf: str) -> str:
    from engine.protocol.errors import ModelFileError
    from fewer import model_store

    try:
        return str(model_store.resolve(gguf))
    except ModelFileError:
        pull = gguf in model_store.PUBLISHED
        return f"{gguf} ({'will be pulled' if pull else 'MISSING on this machine'})"


def _key(model: ModelConfig) -> str:
    return "with a key" if model.api_key else "without a key"


def _route(route: RouteConfig) -> str:
    budget = route.budget
    if budget is None:
        return f"{route.model}, no budget"
    return f"{route.model}, budget {budget.max_tokens:,} tokens ({budget.mode})"
