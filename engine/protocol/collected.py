"""Engine events in, one whole OpenAI completion out: the answer of a request without `stream`."""

from __future__ import annotations

from typing import Any, Literal

from engine.protocol.errors import FewerError, from_code
from engine.protocol.frames import Event, Failed, Kind, StreamEvent, TokenLogprob, ToolDelta, Usage
from engine.protocol.shapes import chat_logprobs, completion_logprobs, tool_delta, usage_object


class _Choice:
    __slots__ = (
        "finish",
        "landed",
        "logprobs",
        "refusal_logprobs",
        "seed",
        "stop",
        "texts",
        "tools",
    )

    def __init__(self) -> None:
        self.texts: dict[Kind, list[str]] = {}
        self.logprobs: list[TokenLogprob] = []
        self.refusal_logprobs: list[TokenLogprob] = []
        self.tools: dict[int, ToolDelta] = {}
        self.finish: str | None = None
        self.stop: str | int | None = None
        self.landed = False
        self.seed: int | None = None

    def text(self, kind: Kind) -> str:
        return "".join(self.texts.get(kind, ()))


class Collected:
    """Adds up the events of one response until `ended`; then `error` or `completion()`."""

    def __init__(
        self, surface: Literal["chat", "completions"], id: str, model: str, created: int
    ) -> None:
        """created: Unix time in seconds."""
        self.error: FewerError | None = None
        self._surface = surface
        self._id, self._model, self._created = id, model, created
        self._choices: dict[int, _Choice] = {}
        self._usage: Usage | None = None

    @property
    def ended(self) -> bool:
        return self._usage is not None or self.error is not None

    def add(self, event: StreamEvent) -> None:
        if isinstance(event, Failed):
            self.error = from_code(
                event.code, event.message, param=event.param, retry_after_s=event.retry_after_s
            )
        elif isinstance(event, Event):
            self._add_event(event)

    def _add_event(self, event: Event) -> None:
        choice = self._choices.setdefault(event.choice, _Choice())
        if event.text:
            choice.texts.setdefault(event.kind, []).append(event.text)
        if event.logprobs:
            refused = event.kind == "refusal"
            (choice.refusal_logprobs if refused else choice.logprobs).extend(event.logprobs)
        if event.tool is not None:
            choice.tools[event.tool.index] = _joined(choice.tools.get(event.tool.index), event.tool)
        if event.seed is not None:
            choice.seed = event.seed
        if event.finish is not None:
            choice.finish, choice.stop, choice.landed = event.finish, event.stop, event.landed
        if event.usage is not None:
            self._usage = event.usage

    def completion(self) -> dict[str, Any]:
        """The completion object. Call it once `ended` is true and `error` is None."""
        shape = self._chat_choice if self._surface == "chat" else self._text_choice
        return {
            "id": self._id,
            "object": "chat.completion" if self._surface == "chat" else "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": [
                self._with_extras(shape(index, choice), choice)
                for index, choice in sorted(self._choices.items())
            ],
            "usage": usage_object(self._usage or Usage()),
        }

    def _chat_choice(self, index: int, choice: _Choice) -> dict[str, Any]:
        text, refusal = choice.text("text"), choice.text("refusal")
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text if text or not (choice.tools or refusal) else None,
            "refusal": refusal or None,
        }
        if reasoning := choice.text("reasoning"):
            message["reasoning_content"] = reasoning
        if choice.tools:
            message["tool_calls"] = [
                {key: value for key, value in tool_delta(tool).items() if key != "index"}
                for _, tool in sorted(choice.tools.items())
            ]
        return {
            "index": index,
            "message": message,
            "logprobs": chat_logprobs(choice.logprobs, choice.refusal_logprobs),
            "finish_reason": choice.finish,
        }

    def _text_choice(self, index: int, choice: _Choice) -> dict[str, Any]:
        return {
            "index": index,
            "text": choice.text("text"),
            "logprobs": completion_logprobs(choice.logprobs, 0) if choice.logprobs else None,
            "finish_reason": choice.finish,
        }

    def _with_extras(self, shape: dict[str, Any], choice: _Choice) -> dict[str, Any]:
        """vLLM's `stop_reason`, whether it has landed, and the seed that repeats the choice."""
        if choice.stop is not None:
            shape["stop_reason"] = choice.stop
        if choice.landed:
            shape["landed"] = True
        if choice.seed is not None:
            shape["seed"] = choice.seed
        return shape


def _joined(before: ToolDelta | None, piece: ToolDelta) -> ToolDelta:
    if before is None:
        return piece
    return ToolDelta(
        index=piece.index,
        id=before.id or piece.id,
        name=before.name or piece.name,
        arguments=before.arguments + piece.arguments,
    )
