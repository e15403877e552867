"""Which of a route's models can take a request at all. Asked before any of them is tried."""

from __future__ import annotations

from collections.abc import Sequence

from engine.protocol.errors import InvalidRequest
from gateway.backends.base import Backend
from gateway.config import Config
from gateway.estimate import conversation_tokens, input_tokens
from policies.prompt import is_image
from policies.request import Request


def fitting(
    request: Request, names: Sequence[str], backends: dict[str, Backend], config: Config
) -> list[str]:
    """Those of `names` that can answer. Raises `InvalidRequest` when images leave none.

    The first name is tried whatever its window: its refusal has the exact numbers. A fallback
    whose window is known and too small is left out, since its refusal would hide the cause.
    """
    able = list(names)
    if (place := _image_place(request)) is not None:
        able = [name for name in names if backends[name].capabilities.images]
        if not able:
            raise InvalidRequest(
                f"The model {names[0]} reads text only; {place} holds an image. Leave it out, "
                f"or ask for a model that takes images.",
                param=place,
            )
    if len(able) < 2:
        return able
    return [able[0], *(name for name in able[1:] if fits(request, name, config))]


def fits(request: Request, name: str, config: Config) -> bool:
    """Is the model's window large enough, as far as it is known?"""
    window = config.window(name)
    return window is None or window >= estimated_tokens(request)


def estimated_tokens(request: Request) -> int:
    """About how many tokens of context the request needs: prompt and one choice's output.

    An estimate will do: a fallback that is let through in error refuses by itself, and its
    refusal is not shown.
    """
    longest = max(map(input_tokens, request.prompts), default=0)
    output = 1 if request.clamp else request.most_tokens or 0
    return conversation_tokens(request) + longest + output


def _image_place(request: Request) -> str | None:
    """Where the first image part stands, as OpenAI writes `param`."""
    for index, message in enumerate(request.messages):
        content = message.get("content")
        for place, part in enumerate(content if isinstance(content, list) else ()):
            if is_image(part):
                return f"messages[{index}].content[{place}]"
    return None
