"""Which arm of its experiment a conversation is in, for each policy.

Every active policy leaves a share of the conversations alone, and what it saves is read from the
difference between the two arms alone (`policies.savings`). The whole conversation is in one arm:
what a policy did to an early turn shows in the later ones, and turns resemble one another, so that
an interval that took requests for independent covered 47 % where it claimed 95 %.

A client names the conversation in `metadata`, under a name of METADATA_NAMES. OpenAI's API has no
field of its own for it on these surfaces, and the fields that look like one mean something else:
`user` and `safety_identifier` are a person, `prompt_cache_key` is whatever shares a prefix, often
all users of a product: as one conversation they would leave nothing to compare. Without a name
it is everything up to the first message of the user, which clients send again with every turn.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

import msgspec

from policies.request import Request

Arm = Literal["treated", "control"]

METADATA_NAMES = ("conversation_id", "session_id", "thread_id")
"""The first that is there counts. LangSmith and the SDKs that follow it group turns by these."""

_HASH_BYTES = 8
_CANONICAL = json.JSONEncoder(sort_keys=True, default=str)


def conversation_of(request: Request) -> str:
    """The same for every turn of one conversation: 16 hexadecimal digits, no text of the client's.

    Two conversations that begin with the same words count as one, which costs precision and no
    validity: they are in the same arm and in the same cluster.
    """
    named = request.parameters.get("metadata") or {}
    for name in METADATA_NAMES:
        if isinstance(id := named.get(name), str) and id:
            return _digest("id", id)
    if request.prompts:
        return _digest("prompt", request.prompts[0])
    return _digest("opening", _opening(request))


def arm_of(policy: str, epoch: str, tenant: str, conversation: str, share: float) -> Arm:
    """Pure and even: `control` for a share of all conversations, drawn for each policy alone.

    A larger share keeps in the control arm whoever was in it.
    """
    drawn = int(_digest("arm", policy, epoch, tenant, conversation), 16)
    return "control" if drawn < share * 16 ** (2 * _HASH_BYTES) else "treated"


def epoch_of(settings: msgspec.Struct) -> str:
    """Names a policy's settings: with others it is another experiment, whose arms are drawn anew.

    What does not change what the treated arm gets is left out: the mode and the holdout's size.
    """
    values = msgspec.to_builtins(settings)
    return _digest({k: v for k, v in values.items() if k not in ("mode", "holdout")})


def _opening(request: Request) -> list[Any]:
    """Role and content of each message up to the user's first."""
    opening = []
    for message in request.messages:
        opening.append((message.get("role"), message.get("content")))
        if message.get("role") == "user":
            break
    return opening


def _digest(*values: Any) -> str:
    # As ASCII: a lone surrogate from a client's JSON has no UTF-8.
    text = _CANONICAL.encode(values)
    return hashlib.blake2b(text.encode("ascii"), digest_size=_HASH_BYTES).hexdigest()
