"""What must hold of a route's settings beyond their types. Each check fails at the first fault."""

from __future__ import annotations

from engine.protocol.errors import InvalidRequest
from engine.protocol.sampling import Sampling
from gateway.config_file import Document
from gateway.config_sections import Config, RouteConfig, SamplingConfig


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
