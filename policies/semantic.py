"""The policy `cache`, semantic: a request that differs from an earlier one in the words of its last
message, and not in what it asks.

Everything else must be the same: the turns before it, the system message, every parameter, tools,
and who asks. What is left is one text against one text. The earlier answer becomes the draft of the
new one, so that a model that verifies predictions writes only what differs; or, where a route opts
in, it is the answer, if what both texts turn on is the same (`policies.slots`).
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec.structs import replace

from policies.base import Mode, Policy
from policies.cache import why_unrepeatable
from policies.context import Context
from policies.decision import Decision, keep
from policies.forms import may_call
from policies.prompt import Prompt
from policies.reading import MAX_CHARS
from policies.request import Request

Use = Literal["draft", "answer"]

_MASKED = "\ufffc"


class SemanticCachePolicy(Policy):
    """Says which requests are compared with earlier ones; the gateway finds them.

    use:            what an earlier answer becomes: the draft of the new one, or that itself
    min_similarity: in place of the calibrated thresholds where it is higher than they are
    max_entries:    that a tenant may have on this route
    sampled:        also requests that would be answered otherwise each time
    """

    name = "semantic"

    def __init__(
        self,
        mode: Mode = "active",
        *,
        use: Use = "draft",
        min_similarity: float = 0.0,
        max_entries: int = 2000,
        sampled: bool = False,
    ) -> None:
        self.mode = mode
        self.use: Use = use
        self.min_similarity = min_similarity
        self.max_entries = max_entries
        self.sampled = sampled

    def decide(self, request: Request, context: Context) -> Decision:
        reason = self.why_not(request)
        return keep("compared" if reason is None else f"not compared: {reason}")

    def why_not(self, request: Request) -> str | None:
        """Why the request is like no other; None if it may be."""
        if not self.sampled and (reason := why_unrepeatable(request)) is not None:
            return reason
        if (text := question_of(request)) is None:
            return "it does not end with a text of the user's"
        if len(text) > MAX_CHARS:
            return "its last text is too long"
        if may_call(request):
            return "tools may be called"
        if Prompt(request, "turn").has_images:
            return "it has images"
        if self.use == "draft" and "prediction" in request.parameters:
            return "the client predicts the answer itself"
        if self.use == "draft" and request.choices != 1:
            return "it asks for several answers"
        return None


def question_of(request: Request) -> str | None:
    """The text of the last message, if it is the user's and nothing but text."""
    last = request.messages[-1] if request.messages else {}
    content = last.get("content")
    if last.get("role") != "user":
        return None
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        content = content[0].get("text") if content[0].get("type") == "text" else None
    return content if isinstance(content, str) and content.strip() else None


def without_question(request: Request) -> Request:
    """The request with nothing in the place of that text: what must be the same."""
    last = dict(request.messages[-1])
    content: Any = last["content"]
    last["content"] = _MASKED if isinstance(content, str) else [content[0] | {"text": _MASKED}]
    return replace(request, messages=[*request.messages[:-1], last])
