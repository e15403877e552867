"""The policy `shape`: what the answers of a route look like.

An instruction asks for short answers, and is an experiment. A schema in place of prose, hidden
reasoning and a fixed answer are what the route promises to programs and people: they hold in the
control arm too, where an answer of another form would be an error.

It is asked before `budget`, which cuts nothing early that is of use only when it is whole.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from policies.base import Mode, Policy
from policies.context import Context
from policies.decision import Decision, answer, keep, rewrite
from policies.forms import names_form, offers_tools
from policies.instructions import with_instruction
from policies.request import Request
from policies.turns import text_of

VERSION = 1
"""Goes up with every change of a wording: with another one it is another experiment."""

CONCISE = (
    "Answer in as few words as will do, and in the user's language: no preamble, no repetition of "
    "the question, no closing remarks. Leave out nothing that was asked for."
)
CONCISE_CHINESE = (
    "请用最少的文字回答：不要开场白，不要重复问题，不要结束语。问到的内容一项也不要遗漏。"
)

_TELLING_CHARACTERS = 400
"""What is asked stands at the end, as a rule, after what was pasted."""

_KANA = re.compile(r"[\u3040-\u30ff]")
_HAN = re.compile(r"[\u3400-\u9fff]")
_LETTER = re.compile(r"[^\W\d_]")


class ShapePolicy(Policy):
    """concise:         ask for short answers, in words of ours
    instruction:     the route's own text, before those
    schema:          a JSON Schema that answers conform to
    hides_reasoning: what a model thinks before it answers is not sent to the client
    text:            what is answered without asking a model
    """

    name = "shape"

    def __init__(
        self,
        mode: Mode = "active",
        *,
        concise: bool = False,
        instruction: str = "",
        schema: dict[str, Any] | None = None,
        hides_reasoning: bool = False,
        text: str | None = None,
    ) -> None:
        self.mode = mode
        self.concise = concise
        self.instruction = instruction
        self.schema = schema
        self.hides_reasoning = hides_reasoning
        self.text = text

    def decide(self, request: Request, context: Context) -> Decision:
        return self._decide(request, self._instruction(request))

    def control(self, request: Request, context: Context) -> Decision:
        """All but the instruction."""
        return self._decide(request, "")

    def transformer(self, request: Request, context: Context) -> HiddenReasoning | None:
        return HiddenReasoning() if self.hides_reasoning else None

    def _decide(self, request: Request, instruction: str) -> Decision:
        if self.text is not None:
            return answer(self.text, "the route's fixed answer")
        shaped, told = request, []
        if instruction and request.messages:
            shaped = replace(request, messages=with_instruction(request.messages, instruction))
            told.append("instruction added")
        if self.schema is not None:
            obstacle = why_no_schema(request)
            if obstacle is None:
                shaped = replace(shaped, schema=self.schema)
            told.append("schema set" if obstacle is None else f"no schema: {obstacle}")
        if self.hides_reasoning:
            told.append("reasoning hidden")
        reason = "; ".join(told) or "left as it is"
        return keep(reason) if shaped is request else rewrite(shaped, reason)

    def _instruction(self, request: Request) -> str:
        texts = [self.instruction] if self.instruction else []
        if self.concise:
            texts.append(CONCISE_CHINESE if _is_chinese(request) else CONCISE)
        return "\n\n".join(texts)


class HiddenReasoning:
    """Lets all of an answer through but what the model thought. What that cost stays in the
    usage."""

    def feed(self, event: Any) -> list[Any]:
        if getattr(event, "kind", "") != "reasoning":
            return [event]
        if event.finish is None and event.seed is None:
            return []
        return [replace(event, kind="text", text="", tokens=0, logprobs=None)]

    def flush(self) -> list[Any]:
        return []


def why_no_schema(request: Request) -> str | None:
    """Why the route's schema is not for this request; None where it is."""
    if request.surface != "chat":
        return "the request is no chat"
    if offers_tools(request):
        return "tools are asked for"
    return "the client names a form" if names_form(request) else None


def _is_chinese(request: Request) -> bool:
    """Is the user's first message mostly Chinese? It is the same in every turn."""
    first = next((m for m in request.messages if m.get("role") == "user"), {})
    text = text_of(first)[-_TELLING_CHARACTERS:]
    letters = len(_LETTER.findall(text))
    return not _KANA.search(text) and 2 * len(_HAN.findall(text)) > letters
