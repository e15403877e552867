"""Chat messages to token ids, through the model's own chat template."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError, meta

from engine.protocol.errors import InvalidRequest, ModelFileError
from engine.text.guard import Guard
from engine.text.messages import plain_messages
from engine.text.template_environment import (
    Budget,
    TemplateEnvironment,
    TemplateRefusal,
    budget,
)
from engine.text.tokenizer import Tokenizer

# What code that is not ours may raise when it meets messages that it does not expect.
_TEMPLATE_ERRORS = (
    TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError,
    RecursionError,
)  # fmt: skip


class ChatTemplate:
    """Immutable, and safe to use from several threads at once.

    The template's own markers become control ids; whatever users wrote stays text, see
    `engine.text.guard`. Text between two markers is encoded in one piece, whoever wrote it, so
    that harmless messages get the ids that the model was trained on.

    supports_tools: the template has a place for tools; without one they would be lost
    """

    def __init__(
        self,
        source: str | None,
        tokenizer: Tokenizer,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        """`clock` is what the template's `strftime_now` reads. Raises `ModelFileError`."""
        self._tokenizer = tokenizer
        self._guard = Guard(tokenizer.markers)
        longest_first = sorted(tokenizer.markers, key=len, reverse=True)
        self._markers = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._knows_developer = source is not None and "developer" in source
        self._template: Template | None = None
        self.supports_tools = False
        if source is not None:
            self._compile(source, clock)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], tokenizer: Tokenizer) -> ChatTemplate:
        """A file without a template is good for completions: only `render` refuses then."""
        source = metadata.get("tokenizer.chat_template")
        return cls(None if source is None else str(source), tokenizer)

    def render(
        self, messages: Sequence[Any], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """The prompt's ids, up to where the assistant's answer begins.

        Raises `InvalidRequest` for messages that are malformed, hold more than text, or that
        the template refuses, with its reason.
        """
        plain = plain_messages(messages)
        if not self._knows_developer:
            plain = [_as_system(message) for message in plain]
        text = self.expand(
            {"messages": plain, "tools": list(tools) if tools else None, "documents": None},
            add_generation_prompt=True,
        )
        return self._encode(text)

    def expand(self, variables: Mapping[str, Any], **trusted: Any) -> str:
        """The template's output, in which `variables` are guarded and `trusted` are not."""
        if self._template is None:
            raise InvalidRequest(
                "This model's file has no chat template; use /v1/completions.", param="messages"
            )
        token = budget.set(Budget())
        try:
            guarded = self._guard.guard_tree(dict(variables))
            return self._template.render(**{**self._tokenizer.named, **guarded, **trusted})
        except TemplateRefusal as error:
            reason = self._guard.restore(str(error.message))
            raise InvalidRequest(
                f"The model's chat template refuses these messages: {reason}", param="messages"
            ) from error
        except _TEMPLATE_ERRORS as error:
            raise InvalidRequest(
                "The model's chat template cannot render these messages: "
                f"{self._guard.restore(str(error))}.",
                param="messages",
            ) from error
        finally:
            budget.reset(token)

    def restore(self, expanded: str) -> str:
        """What `expand` returned, as text to read."""
        return self._guard.restore(expanded)

    def _compile(self, source: str, clock: Callable[[], datetime]) -> None:
        environment = TemplateEnvironment(self._guard, clock)
        try:
            names = meta.find_undeclared_variables(environment.parse(source))
            self._template = environment.from_string(source)
        except (TemplateSyntaxError, RecursionError) as error:
            raise ModelFileError(
                f"The model's chat template is not valid Jinja: {error}."
            ) from error
        self.supports_tools = "tools" in names

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = []
        end = 0
        for marker in self._markers.finditer(text):
            ids += self._encode_text(text[end : marker.start()])
            ids.append(self._tokenizer.markers[marker[0]])
            end = marker.end()
        return ids + self._encode_text(text[end:])

    def _encode_text(self, text: str) -> list[int]:
        return self._tokenizer.encode(self._guard.restore(text)) if text else []


def _as_system(message: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's newer name of the system role, for templates from before it."""
    return {**message, "role": "system"} if message["role"] == "developer" else message
