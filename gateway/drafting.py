"""The answer to an earlier request as the draft of a new one: its `prediction`, in OpenAI's terms.

It is put in when everything else is decided, for a model that verifies it: it changes how long an
answer takes, and never what it says.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from gateway.backends.base import Capabilities
from gateway.verdict import Verdict
from policies.request import Request
from policies.semantic import SemanticCachePolicy

NO_DRAFT = "no draft: this model verifies no prediction"


def drafted(request: Request, draft: str, capabilities: Capabilities) -> Request:
    """The request as a model of these capabilities is to get it. What the client predicts stays."""
    if not (draft and capabilities.prediction) or "prediction" in request.parameters:
        return request
    prediction = {"type": "content", "content": draft}
    return replace(request, parameters=request.parameters | {"prediction": prediction})


def undrafted(verdicts: Iterable[Verdict], capabilities: Capabilities) -> dict[str, str]:
    """By policy: why a model of these capabilities gets no draft."""
    if capabilities.prediction:
        return {}
    policies = (verdict.policy for verdict in verdicts if verdict.obeyed)
    return {
        policy.name: NO_DRAFT
        for policy in policies
        if isinstance(policy, SemanticCachePolicy) and policy.use == "draft"
    }
