"""What `fewer serve` says once it serves: where, what, how much fits, and how to try it."""

from __future__ import annotations

from fewer.launch import Launch
from fewer.terminal import DIM, painted


def banner(launch: Launch, fits: dict[str, str], servable: bool, keyed: bool) -> str:
    """fits: a line for each model; servable: the gateway has a route that can answer;
    keyed: requests need a key.
    """
    needs = "with a key of `fewer keys`" if keyed else "any key will do"
    rows = [("chat page", f"{launch.url}/")]
    rows += [("API", f"{launch.url}/v1 (OpenAI's format; {needs})")]
    rows += [("routes", ", ".join(_routes(launch)))]
    for engine in launch.engines:
        rows += [("model", engine.name), ("fits", fits[engine.name])]
    rows += [("try", _example(launch, keyed))]
    title = "Fewer is ready." if servable else "Fewer runs, but no route can answer yet."
    lines = [f"  {painted(f'{label:<10}', DIM)} {text}" for label, text in rows]
    return "\n".join(["", title, *lines, ""])


def _routes(launch: Launch) -> list[str]:
    routes = launch.config.routes
    return [f"{name} → {route.model}" for name, route in routes.items()] or ["none: ask by model"]


def _example(launch: Launch, keyed: bool) -> str:
    asked = launch.config.default_route or next(iter(launch.config.models))
    body = (
        f'{{"model": "{asked}", "stream": true, "temperature": 0, "messages": '
        f'[{{"role": "user", "content": "What is the capital of Japan?"}}]}}'
    )
    key = '-H "authorization: Bearer $FEWER_API_KEY" ' if keyed else ""
    return (
        f"curl -N {launch.url}/v1/chat/completions {key}"
        f"-H 'content-type: application/json' \\\n             -d '{body}'"
    )
