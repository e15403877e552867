"""`fewer check`: find a configuration's mistakes before they are served, and sum it up."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fewer import options

if TYPE_CHECKING:
    from gateway.config import Config, ModelConfig, RouteConfig


def configure(parser: argparse.ArgumentParser) -> None:
    options.add_config(parser)


def run(arguments: argparse.Namespace) -> int:
    config = options.load_config(arguments)
    files = {name: _file(config.models[name].gguf or name) for name in config.gguf_models()}
    _check_windows(config, files)
    print(summary(config, files))
    return 0


def summary(config: Config, files: dict[str, Path | None]) -> str:
    """The configuration in a few lines: what listens, what answers, and what is still missing.

    files: of each gguf model, where it is on this machine
    """
    server = config.server
    workers = "1 worker" if server.workers == 1 else f"{server.workers} workers"
    lines = [
        f"listens   {server.host} port {server.port}, {workers}{_keys(server.host)}",
        f"keeps     {config.store}",
    ]
    if (recorder := config.recorder) is not None:
        what = "sizes and hashes" if recorder.content == "none" else "ALL THAT CLIENTS WRITE"
        lines.append(f"records   {what}, into {recorder.path}")
    lines += [f"model     {name}: {_model(config, name, files)}" for name in config.models]
    lines += [f"route     {name}: {_route(route)}" for name, route in config.routes.items()]
    lines += [f"alias     {alias}: {target}" for alias, target in config.aliases.items()]
    lines += [f"default   {config.default_route or 'none: every request must name its model'}"]
    return "\n".join([*lines, _verdict(config, files)])


def _keys(host: str) -> str:
    from gateway.middleware.guard import is_loopback

    return "" if is_loopback(host) else ", only with keys"


def _verdict(config: Config, files: dict[str, Path | None]) -> str:
    lost = [name for name, path in files.items() if path is None and not _can_pull(config, name)]
    if not lost:
        return "The configuration is good."
    return f"The configuration is good, but cannot be served here without {', '.join(lost)}."


def _model(config: Config, name: str, files: dict[str, Path | None]) -> str:
    model = config.models[name]
    if model.gguf is not None:
        window = config.engine_settings(name).max_model_len
        state = "will be pulled" if _can_pull(config, name) else "MISSING on this machine"
        text = f"our engine, {files[name] or f'{model.gguf} ({state})'}, {window:,} tokens"
    elif model.engine is not None:
        text = f"our engine at {model.engine}"
    elif model.openai is not None:
        text = f"{model.model or name} at {model.openai}, {_key(model)}"
    else:
        text = f"plays {model.scripted}"
    return text + (f", falls back to {', '.join(model.fallback)}" if model.fallback else "")


def _file(gguf: str) -> Path | None:
    from engine.protocol.errors import ModelFileError
    from fewer import model_store

    try:
        return model_store.resolve(gguf)
    except ModelFileError:
        return None


def _can_pull(config: Config, name: str) -> bool:
    from fewer.model_store import PUBLISHED

    return config.models[name].gguf in PUBLISHED


def _check_windows(config: Config, files: dict[str, Path | None]) -> None:
    """What `fewer serve` would find in the models' files: damage, and windows that they lack."""
    from engine.runner.registry import shape_of
    from engine.weights.gguf import GgufFile
    from fewer.survey import check_window

    for name, path in files.items():
        if path is not None:
            # Of any executor: the window is the file's, and nothing has to be compiled for it.
            check_window(config, name, shape_of(GgufFile.open(path), "reference"))


def _key(model: ModelConfig) -> str:
    return "with a key" if model.api_key else "without a key"


def _route(route: RouteConfig) -> str:
    budget, limits = route.budget, f", at most {route.limits}" if route.limits else ""
    models = " or ".join(dict.fromkeys((route.model, *route.chosen)))
    cap = "no budget" if budget is None else f"budget {budget.max_tokens:,} tokens ({budget.mode})"
    return f"{models}, {cap}{_policies(route)}{limits}"


def _policies(route: RouteConfig) -> str:
    """All others that the file asks for, in the order in which they decide."""
    sections = {
        "shape": route.shape,
        "agent": route.agent,
        "semantic cache": route.cache.semantic,
        "route": route.route,
        "history": route.history,
        "input": route.input,
        "dedup": route.dedup,
    }
    return "".join(f", {name} ({section.mode})" for name, section in sections.items() if section)
