"""What a policy decided about one request, and the token arithmetic behind it."""

from __future__ import annotations

from typing import Literal

import msgspec

from policies.record import Child
from policies.request import Request

Action = Literal["keep", "rewrite", "route", "answer", "refuse"]


class Arithmetic(msgspec.Struct, frozen=True):
    """Output tokens of the whole request, all choices together.

    asked:   what the client's limits would have allowed; None when it gave no limit
    allowed: what may be produced after the decision
    """

    asked: int | None
    allowed: int


class PromptTokens(msgspec.Struct, frozen=True):
    """Tokens of the prompt, tools included, as `policies.counting` counts them."""

    before: int
    after: int


class Decision(msgspec.Struct, frozen=True):
    """Made by one of the functions below, so that each action has what it needs.

    reason:  for people and headers: ASCII, no text of the client's
    request: `rewrite`: the request that takes the place of the one decided about
    text:    `answer`: what is answered without asking a model
    param:   `refuse`: the field of the request that is at fault
    code:    `refuse`: the error's code, for programs
    prompt:  what the decision makes of the prompt; None where it leaves it alone
    child:   a generation that the policy asks for besides, for later requests
    models:  `route`: the model that answers in place of the route's own; of two the first begins,
             and the second takes over where the first is unsure
    """

    action: Action
    reason: str
    tokens: Arithmetic | None = None
    request: Request | None = None
    text: str = ""
    param: str | None = None
    code: str = "policy_denied"
    prompt: PromptTokens | None = None
    child: Child | None = None
    models: tuple[str, ...] = ()


def keep(reason: str, tokens: Arithmetic | None = None, child: Child | None = None) -> Decision:
    """The request goes on as it is."""
    return Decision("keep", reason, tokens, child=child)


def rewrite(
    request: Request,
    reason: str,
    tokens: Arithmetic | None = None,
    prompt: PromptTokens | None = None,
    child: Child | None = None,
) -> Decision:
    """`request` goes on in place of the one that came."""
    return Decision("rewrite", reason, tokens, request=request, prompt=prompt, child=child)


def route(models: tuple[str, ...], reason: str) -> Decision:
    """One of these answers in place of the route's own model."""
    return Decision("route", reason, models=models)


def answer(text: str, reason: str) -> Decision:
    """No model is asked; every choice is answered with `text`."""
    return Decision("answer", reason, text=text)


def refuse(reason: str, param: str | None = None, code: str = "policy_denied") -> Decision:
    """The client gets a 400 with this reason."""
    return Decision("refuse", reason, param=param, code=code)
