"""The policy `cache`, exact: the same request again gets the answer that it got before.

The key is a keyed hash of everything that can change the answer. What is left out of it is named,
each with the reason; a field that nobody has thought of is in it, and costs a miss at most. Keys
that list what counts have been wrong with every new parameter (litellm#894, #5049, #9844).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from policies.base import Mode, Policy
from policies.context import Context
from policies.decision import Decision, keep
from policies.request import Request

FORMAT = b"fewer-answer-1"
"""Goes up when what a key stands for changes, or what the policies make of a request."""

LEFT_OUT = {
    "model": "one of the names of the route; what will answer is in the key by itself",
    "stream": "says how the answer is sent; every shape is made of the same events",
    "include_usage": "as `stream`: the usage is kept, and sent to who asks for it",
}
"""Fields of the canonical request that are not in the key, and why."""

LEFT_OUT_PARAMETERS = {
    "user": "names a person for the upstream's abuse reports; no model reads it",
    "safety_identifier": "as `user`, under its newer name",
    "metadata": "labels for the client's own records; differs with every conversation",
    "prompt_cache_key": "says where the upstream may look for a prefix; the answer is the same",
}
"""Parameters that are not in the key, and why. Each is what the user may see as an id."""

_KEY_BYTES = 32


def key_of(request: Request, *, salt: str, route: str, models: Sequence[Any]) -> bytes:
    """32 bytes that two requests share only if the same answer is right for both.

    request: as it is after all policies, its limits the ones that hold
    salt:    the tenant's secret: nobody else can have the key, or guess it
    route:   with it go the sampling of fallbacks and whatever else it is set to
    models:  what will answer, first choice first: plain values that change with the model

    Objects are compared without regard to the order of their fields, but for those inside tools,
    schemas and other parameters: a model sees that order, and answers in it.
    """
    fields = msgspec.structs.asdict(request).items()
    told = {name: value for name, value in fields if name not in LEFT_OUT}
    messages = told.pop("messages", None)
    parameters: dict[str, Any] = told.pop("parameters")
    more = sorted(
        (name, _json(value, sort_keys=name == "logit_bias"))
        for name, value in parameters.items()
        if name not in LEFT_OUT_PARAMETERS
    )
    # JSON in one line each, so that no two requests can be the same lines.
    lines = (_json([route, list(models), told, more]), _json(messages, sort_keys=True))
    secret = hashlib.blake2b(salt.encode()).digest()
    return hashlib.blake2b(
        "\n".join(lines).encode("ascii"), digest_size=_KEY_BYTES, key=secret, person=FORMAT
    ).digest()


def _json(value: Any, *, sort_keys: bool = False) -> str:
    """As ASCII: a lone surrogate from a client's JSON has no UTF-8."""
    return json.dumps(value, sort_keys=sort_keys, separators=(",", ":"))


def why_unrepeatable(request: Request) -> str | None:
    """Why the same request may well be answered otherwise the next time; None if it may not.

    A missing temperature is no temperature of 0: most models' default is 1.
    """
    parameters = request.parameters
    if parameters.get("seed") is not None:
        return None
    temperature = parameters.get("temperature")
    if temperature is None:
        return "neither temperature nor seed is given"
    return None if temperature == 0 else "it is sampled without a seed"


class ExactCachePolicy(Policy):
    """Says which requests may be answered from the cache; the gateway looks them up and keeps
    their answers.

    sampled:  also those that would be answered otherwise each time
    keep_cut: also answers that ended at their limit. The limit is in the key, so the same request
              would be cut at the same place
    ttl_s:    how long an answer is kept
    """

    name = "cache"

    def __init__(
        self,
        mode: Mode = "active",
        *,
        sampled: bool = False,
        keep_cut: bool = True,
        ttl_s: float = 3600.0,
    ) -> None:
        self.mode = mode
        self.sampled = sampled
        self.keep_cut = keep_cut
        self.ttl_s = ttl_s

    def applies(self, request: Request) -> bool:
        return self.sampled or why_unrepeatable(request) is None

    def decide(self, request: Request, context: Context) -> Decision:
        if self.applies(request):
            return keep("looked up")
        return keep(f"not looked up: {why_unrepeatable(request)}")
