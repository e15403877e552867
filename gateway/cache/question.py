"""What a request is compared with earlier ones by, as far as policies allow it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from gateway.verdict import Verdict
from policies.request import Request
from policies.semantic import SemanticCachePolicy, question_of, without_question


class Question(msgspec.Struct, frozen=True):
    """text:      of the last message
    partition: names everything else of the request, and whose it is
    owner:     among whose entries it counts
    policy:    whose settings hold
    is_shadow: nothing comes of it but a report
    """

    text: str
    partition: bytes
    owner: str
    policy: SemanticCachePolicy
    is_shadow: bool


def question_for(
    verdicts: Iterable[Verdict],
    request: Request,
    owner: str,
    key: Callable[[Request], bytes],
    *,
    verifies: bool,
) -> Question | None:
    """None in the control arm, and where the model, which verifies no draft, would get one.

    request: as it is after all policies
    key:     of a request, for this tenant, route and models: 32 bytes (`policies.cache.key_of`)
    """
    for verdict in verdicts:
        policy, is_shadow = verdict.policy, verdict.mode == "shadow"
        if not isinstance(policy, SemanticCachePolicy) or policy.why_not(request) is not None:
            continue
        is_of_use = is_shadow or (verdict.obeyed and (verifies or policy.use == "answer"))
        text = question_of(request)
        if is_of_use and text is not None:
            return Question(text, key(without_question(request)), owner, policy, is_shadow)
    return None
